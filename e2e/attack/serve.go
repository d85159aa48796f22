package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startPatience is the time that a server has to start, and to end.
const startPatience = 2 * time.Minute

// serveAnnex starts `annex serve` on the embedded storage, in a directory, and returns it with a function that ends
// it.
func serveAnnex(ctx context.Context, program, dir string, arguments []string) (*target, func() error, error) {
	data := filepath.Join(dir, "data")
	cmd := exec.Command(
		program,
		append([]string{"serve", "--data-dir", data, "--storage", "embedded", "--secure-port", "0"}, arguments...)...)
	log := &tail{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", program, err)
	}
	stop := func() error { return end(cmd, log) }
	hung := time.AfterFunc(startPatience, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, " listens on ") {
		return nil, nil, fmt.Errorf("start %s: it printed %q: %w", program, line, errors.Join(err, stop()))
	}
	t, err := readKubeconfig(filepath.Join(data, "kubeconfig"))
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	t.pid = cmd.Process.Pid
	return t, stop, nil
}

// tail keeps the end of a process's output. It may be used concurrently.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 1 << 20
	t.kept = append(t.kept, b...)
	if len(t.kept) > 2*most {
		t.kept = bytes.Clone(t.kept[len(t.kept)-most:])
	}
	return len(b), nil
}

// panics returns the first line of a panic, empty if there is none.
func (t *tail) panics() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.Lines(string(t.kept)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "bserved a panic") {
			return cut(strings.TrimSpace(line), 300)
		}
	}
	return ""
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept[max(0, len(t.kept)-2000):])
}

// end asks a process to end, and returns an error unless it does so in an orderly way.
func end(cmd *exec.Cmd, log *tail) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	hung := time.AfterFunc(startPatience, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s ended with %w: %s", filepath.Base(cmd.Path), err, log)
	}
	if panicked := log.panics(); panicked != "" {
		return fmt.Errorf("%s panicked: %s", filepath.Base(cmd.Path), panicked)
	}
	return nil
}

// administratorToken returns the token of a kube-apiserver's administrator. The server listens on a loopback address,
// as long as the program runs.
func administratorToken() (string, error) {
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", secret), nil
}

// serveKubernetes starts an etcd that syncs and a kube-apiserver, as serveAnnex starts annex.
func serveKubernetes(ctx context.Context, bin, dir string, arguments []string) (*target, func() error, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, nil, err
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peers := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	var stops []func() error
	stop := func() error {
		var errs []error
		for i := range stops {
			errs = append(errs, stops[len(stops)-1-i]())
		}
		return errors.Join(errs...)
	}
	start := func(program string, arguments ...string) (*exec.Cmd, error) {
		cmd := exec.Command(filepath.Join(bin, program), arguments...)
		log := &tail{}
		cmd.Stderr, cmd.Stdout = log, log
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("start %s (make bin/%s builds it): %w", program, program, err)
		}
		stops = append(stops, func() error {
			_ = cmd.Process.Kill() // its data is not read again
			_ = cmd.Wait()
			if panicked := log.panics(); panicked != "" {
				return fmt.Errorf("%s panicked: %s", program, panicked)
			}
			return nil
		})
		return cmd, nil
	}
	if _, err := start("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers); err != nil {
		return nil, nil, err
	}
	token, err := administratorToken()
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	tokens, keys := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "accounts.key")
	if err := errors.Join(os.WriteFile(tokens, []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600),
		os.WriteFile(keys, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	cmd, err := start("kube-apiserver", append([]string{
		"--etcd-servers",
		etcd,
		"--bind-address",
		"127.0.0.1",
		"--advertise-address",
		"127.0.0.1",
		"--endpoint-reconciler-type",
		"none",
		"--service-cluster-ip-range",
		"10.0.0.0/24",
		"--secure-port",
		fmt.Sprint(ports[2]),
		"--cert-dir",
		filepath.Join(dir, "certificates"),
		"--authorization-mode",
		"RBAC",
		"--token-auth-file",
		tokens,
		"--disable-admission-plugins",
		"ServiceAccount",
		"--service-account-issuer",
		"https://kubernetes.default.svc",
		"--service-account-key-file",
		keys,
		"--service-account-signing-key-file",
		keys,
	}, arguments...)...)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	t := &target{
		url:   &url.URL{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", ports[2])},
		pid:   cmd.Process.Pid,
		admin: credential{name: "administrator", token: token},
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := t.ready(ctx, filepath.Join(dir, "certificates", "apiserver.crt"))
		if err == nil {
			return t, stop, nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return nil, nil, errors.Join(fmt.Errorf("start kube-apiserver: %w", err), stop())
		}
	}
}

// ready returns nil when the server serves, with the certificate in a file, which is trusted from then on.
func (t *target) ready(ctx context.Context, certificate string) error {
	data, err := os.ReadFile(certificate)
	if err != nil {
		return err
	}
	t.roots = x509.NewCertPool()
	t.roots.AppendCertsFromPEM(data)
	client := t.client(t.admin, 1)
	defer client.CloseIdleConnections()
	request, err := t.request(ctx, t.admin, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("it is not ready: %s", cut(string(text), 500))
	}
	return err
}

// freePorts returns ports of the loopback address that nothing listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // at the end, so that no port is chosen twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
