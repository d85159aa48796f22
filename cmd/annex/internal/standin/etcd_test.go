package standin

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestEtcd_answers(t *testing.T) {
	t.Parallel()
	addresses := []string{freeAddress(t), freeAddress(t)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHealth(ctx, addresses) }()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for _, address := range addresses {
		testwait.Until(t, address+" answers", func() bool { return answers(t, client, "http://"+address+"/health") })
		for path, want := range map[string][2]string{
			"/health":  {"health", "true"},
			"/version": {"etcdserver", etcdVersion},
		} {
			response, err := client.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]string
			err = json.NewDecoder(response.Body).Decode(&got)
			response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK || got[want[0]] != want[1] {
				t.Errorf("%s: status %d, %v, %v", path, response.StatusCode, got, err)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, address := range addresses {
		if answers(t, client, "http://"+address+"/health") {
			t.Errorf("%s still answers", address)
		}
	}
}

func TestEtcd_portInUse_fails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used, free := l.Addr().String(), freeAddress(t)
	for _, urls := range []string{"http://" + used, "http://" + free + ",http://" + used} {
		code, stdout, stderr := call("etcd", "--listen-client-urls="+urls)
		if code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", urls, code, stdout)
		}
		oneLine(t, stderr, "etcd: --listen-client-urls: ", used, "address already in use: name an address that no program listens on")
	}
	again, err := net.Listen("tcp", free)
	if err != nil {
		t.Fatalf("the other address is still in use: %v", err)
	}
	again.Close()
}

func TestEtcd_wrongURL_isRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://127.0.0.1:2379", "127.0.0.1:2379", "http://", "unix:///run/etcd.sock", "http://a b"} {
		code, stdout, stderr := call("etcd", "--listen-client-urls="+url)
		if code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", url, code, stdout)
		}
		oneLine(t, stderr, "etcd: --listen-client-urls "+url+": want http://HOST:PORT; this etcd has no TLS")
	}
}

func TestEtcd_version(t *testing.T) {
	t.Parallel()
	if code, stdout, stderr := call("etcd", "--version"); code != 0 || stdout != "etcd Version: "+etcdVersion+"\n" || stderr != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code, stdout, stderr := call("etcd", "--help"); code != 0 || stdout == "" || stderr != "" {
		t.Errorf("help: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// etcdFlagsOfEnvtest returns the flags that envtest of controller-runtime 0.25.2 passes by default.
func etcdFlagsOfEnvtest(dir, address, peers string) []string {
	return []string{
		"--advertise-client-urls=http://" + address, "--data-dir=" + dir, "--listen-client-urls=http://" + address,
		"--listen-peer-urls=http://" + peers,
	}
}

func TestEtcd_flagsOfEnvtest_answersUntilSIGTERM(t *testing.T) {
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	s := startProgram(t, filepath.Join(assets, "etcd"+suffix()), etcdFlagsOfEnvtest(t.TempDir(), address, freeAddress(t))...)
	s.waitFor(t, http.DefaultClient, "http://"+address+"/health")
	s.terminate(t)
}
