package etcdtest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/program"
)

// roleVariable makes the test binary another program: a server, or the etcd member whose JSON it holds.
const (
	roleVariable = "ANNEX_ETCDTEST_ROLE"
	roleServer   = "server"
	roleLimited  = "limited server"
	roleRepairs  = "server with operations"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case roleServer:
		endWithTheTest()
		program.Main(shop())
	case roleLimited:
		endWithTheTest()
		program.Main(limitedShop(nil))
	case roleRepairs:
		endWithTheTest()
		program.Main(repairShop())
	default:
		endWithTheTest()
		if err := runMember(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// endWithTheTest ends the process when the test that started it is gone.
func endWithTheTest() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
}

// role is the test binary as another program. It is killed at the end of the test.
type role struct {
	t     *testing.T
	value string
	args  []string
	log   string // the file that it writes its errors to

	cmd *exec.Cmd // nil while it does not run
	end io.Closer
}

func newRole(t *testing.T, name, value string, args ...string) *role {
	t.Helper()
	r := &role{t: t, value: value, args: args, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(r.kill)
	return r
}

// start starts the program and waits for its first line.
func (r *role) start() {
	r.t.Helper()
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0], r.args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+r.value)
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.cmd, r.end = cmd, in
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		r.t.Fatalf("%s %s ended: %v\n%s", r.value, r.args, err, r.tail())
	}
}

// kill ends the program as kill -9 does.
func (r *role) kill() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	_ = r.end.Close()
	r.cmd = nil
}

// tail returns the end of the program's log.
func (r *role) tail() string {
	log, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-4000):])
}

// server is a replica: a program that serves.
type server struct {
	*role
	dir string
}

// newServer prepares a program that serves on a port that it gets again at a restart.
func newServer(t *testing.T, name string, args ...string) *server {
	t.Helper()
	return newServerAs(t, roleServer, name, args...)
}

func newServerAs(t *testing.T, role, name string, args ...string) *server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	_, port, _ := strings.Cut(freePorts(t, 1)[0], ":")
	args = append([]string{"serve", "--data-dir", dir, "--secure-port", port}, args...)
	return &server{newRole(t, name, role, args...), dir}
}

// config returns the administrator's config.
func (s *server) config() *rest.Config {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "kubeconfig"))
	if err != nil {
		s.t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// memberRole is the configuration of an etcd member in its own process.
type memberRole struct {
	Name, Dir, Cluster             string
	Client, Peer                   string // addresses it listens on
	AdvertiseClient, AdvertisePeer string // addresses it is reached at
}

func runMember(encoded string) error {
	var m memberRole
	if err := json.Unmarshal([]byte(encoded), &m); err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster = m.Name, m.Dir, m.Cluster
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true // a killed process does not lose its writes
	at := func(address string) []url.URL { return []url.URL{{Scheme: "http", Host: address}} }
	config.ListenClientUrls, config.AdvertiseClientUrls = at(m.Client), at(m.AdvertiseClient)
	config.ListenPeerUrls, config.AdvertisePeerUrls = at(m.Peer), at(m.AdvertisePeer)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer etcd.Close()
	fmt.Println("started")
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM)
	select {
	case err := <-etcd.Err():
		return err
	case <-interrupted:
		return nil
	}
}
