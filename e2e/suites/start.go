package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// started is one start of an etcd and a kube-apiserver, until /readyz answers 200.
type started struct {
	wall, cpu time.Duration
	// memory is the memory of both processes in bytes, in which a page that they share counts once, and resident is the resident
	// memory of the kube-apiserver.
	memory, resident int64
}

// compareStarts starts both folders of programs in turn, and prints the medians.
func compareStarts(ctx context.Context, ours, theirs programs, rounds int) error {
	folders := []programs{ours}
	if theirs.dir != "" {
		folders = append(folders, theirs)
	}
	all := make([][]started, len(folders))
	for range rounds {
		for i, folder := range folders {
			s, err := start(ctx, folder.dir)
			if err != nil {
				return fmt.Errorf("%s: %w", folder.name, err)
			}
			all[i] = append(all[i], s)
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "medians of %d starts\tto /readyz\tCPU\tmemory of both\tresident kube-apiserver\n", rounds)
	for i, folder := range folders {
		fmt.Fprintf(table, "%s\t%.2f s\t%.2f s\t%d MB\t%d MB\n", folder.name,
			median(all[i], func(s started) time.Duration { return s.wall }).Seconds(),
			median(all[i], func(s started) time.Duration { return s.cpu }).Seconds(),
			median(all[i], func(s started) int64 { return s.memory })/1e6,
			median(all[i], func(s started) int64 { return s.resident })/1e6)
	}
	return table.Flush()
}

func median[T time.Duration | int64](all []started, of func(started) T) T {
	values := make([]T, 0, len(all))
	for _, s := range all {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// start starts the programs of a folder with the flags that envtest passes, and ends them when the kube-apiserver is ready.
func start(ctx context.Context, assets string) (s started, err error) {
	dir, err := os.MkdirTemp("", "annex-start-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	key := filepath.Join(dir, "sa.key")
	if err := writeKey(key); err != nil {
		return s, err
	}
	etcdURL, port := "http://127.0.0.1:"+freePort(), freePort()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	etcd, err := launch(ctx, filepath.Join(assets, "etcd"), "--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls=http://localhost:0", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, end(etcd)) }()
	if err := answers(ctx, etcdURL+"/health"); err != nil {
		return s, fmt.Errorf("etcd: %w", err)
	}
	server, err := launch(ctx, filepath.Join(assets, "kube-apiserver"), "--etcd-servers="+etcdURL, "--bind-address=127.0.0.1",
		"--endpoint-reconciler-type=none", "--secure-port="+port, "--cert-dir="+dir, "--service-cluster-ip-range=10.0.0.0/24",
		"--allow-privileged=true", "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://127.0.0.1:"+port+"/", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, end(server)) }()
	if err := answers(ctx, "https://127.0.0.1:"+port+"/readyz"); err != nil {
		return s, fmt.Errorf("kube-apiserver: %w", err)
	}
	s.wall = time.Since(began)
	for _, cmd := range []*exec.Cmd{etcd, server} {
		p := process(fmt.Sprintf("/proc/%d", cmd.Process.Pid))
		s.cpu += p.cpu()
		s.resident = p.memory("status", "VmRSS")
		s.memory += p.memory("smaps_rollup", "Pss")
	}
	return s, nil
}

func launch(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	return cmd, cmd.Start()
}

// end ends a process as envtest does.
func end(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) { // etcd ends by the signal
		return err
	}
	return nil
}

// answers waits until a URL answers 200.
func answers(ctx context.Context, url string) error {
	// The certificate is made by the server at its start.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s: %s", url, response.Status)
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// freePort returns a port of the loopback interface that no process listens on.
func freePort() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// writeKey writes a key for the tokens of service accounts.
func writeKey(file string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return os.WriteFile(file, pem.EncodeToMemory(block), 0o600)
}

// cpu returns the time that the process has used a processor so far.
func (p process) cpu() time.Duration {
	const ticksPerSecond = 100 // of all Linux systems that Go supports
	stat, _ := os.ReadFile(filepath.Join(string(p), "stat"))
	_, rest, _ := strings.Cut(string(stat), ") ") // the name of the program may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	return time.Duration(number(fields[11])+number(fields[12])) * time.Second / ticksPerSecond
}
