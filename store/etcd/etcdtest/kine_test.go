//go:build unix

package etcdtest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// kineVariable names the program kine, which make kine builds. It is no dependency of this module, because it links
// an older etcd and older Kubernetes libraries.
const kineVariable = "ANNEX_KINE"

// database creates an empty database and returns its kine endpoint.
type database func(t testing.TB) string

// databases are the databases that kine is tested with, by name. If a database is not installed, its test is skipped.
var databases = map[string]func(t *testing.T) database{
	"SQLite": func(*testing.T) database {
		return func(t testing.TB) string {
			return "sqlite://" + filepath.Join(t.TempDir(), "kine.db") + "?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate"
		}
	},
	"PostgreSQL": startPostgres,
}

func onDatabases(t *testing.T, run func(t *testing.T, name string, empty database)) {
	if os.Getenv(kineVariable) == "" {
		t.Skip(kineVariable + " names no program: make kine builds it and runs this test")
	}
	for _, name := range []string{"SQLite", "PostgreSQL"} {
		t.Run(name, func(t *testing.T) { run(t, name, databases[name](t)) })
	}
}

// kine is a process with etcd's protocol over a database.
type kine struct {
	t        testing.TB
	args     []string
	endpoint string
	log      string
	cmd      *exec.Cmd
}

// startKine starts kine on a free port, or on a socket.
func startKine(t testing.TB, database, address string, more ...string) *kine {
	t.Helper()
	k := &kine{t: t, endpoint: address, log: filepath.Join(t.TempDir(), "kine.log")}
	k.args = append([]string{
		"--listen-address", address, "--endpoint", database, "--metrics-bind-address", "0",
		"--datastore-max-open-connections", "50", // PostgreSQL has 100 for all; kine has no limit
	}, more...)
	k.start()
	t.Cleanup(k.kill)
	return k
}

func (k *kine) start() {
	k.t.Helper()
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.t.Fatal(err)
	}
	defer log.Close()
	k.cmd = exec.Command(os.Getenv(kineVariable), k.args...)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.Dir = filepath.Dir(k.log) // where it keeps its own socket
	if err := k.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	client := k.client()
	defer client.Close()
	testwait.NoError(k.t, "kine answers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "nothing")
		if err != nil {
			written, _ := os.ReadFile(k.log)
			err = fmt.Errorf("%w\n%s", err, written)
		}
		return err
	})
}

func (k *kine) kill() {
	if k.cmd != nil {
		_ = k.cmd.Process.Kill()
		_ = k.cmd.Wait()
		k.cmd = nil
	}
}

func (k *kine) client() *clientv3.Client {
	k.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{k.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		k.t.Fatal(err)
	}
	return client
}

// postgresBin finds PostgreSQL's programs; Debian does not put them into PATH.
func postgresBin(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		t.Skip("PostgreSQL is not installed: apt-get install postgresql")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// startPostgres runs a PostgreSQL of the test's own, on a free port of this machine.
func startPostgres(t *testing.T) database {
	t.Helper()
	bin := postgresBin(t)
	// Not t.TempDir, which only its owner may enter.
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := unprivileged(t, dir)
	const password = "for this test only"
	secret := writeFile(t, filepath.Join(dir, "password"), []byte(password))
	if as != nil {
		if err := os.Chown(secret, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
		return cmd
	}
	if out, err := command(
		"initdb",
		"-D",
		data,
		"-U",
		"postgres",
		"-A",
		"scram-sha-256",
		"--pwfile",
		secret,
		"--no-sync",
	).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	host, port, _ := strings.Cut(freePorts(t, 1)[0], ":")
	server := command("postgres", "-D", data, "-h", host, "-p", port, "-k", dir, "-F")
	server.Stdout, server.Stderr = io.Discard, io.Discard
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // at once
		_ = server.Wait()
	})
	testwait.NoError(t, "PostgreSQL answers", func(ctx context.Context) error {
		return exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"), "-h", host, "-p", port).Run()
	})
	made := 0
	return func(testing.TB) string {
		made++ // kine creates it
		return fmt.Sprintf("postgres://postgres:%s@%s:%s/kine%d?sslmode=disable", strings.ReplaceAll(password, " ", "%20"), host, port, made)
	}
}

// unprivileged returns the user that PostgreSQL, which refuses to be root, runs as; nil is the user of the test. It
// gives the directory to that user.
func unprivileged(t *testing.T, dir string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil && os.Chown(dir, int(uid), int(gid)) == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Skip("PostgreSQL does not run as root, and there is no user postgres")
	return nil
}

// keepNothing makes kine compact up to any requested revision; by default it keeps the last 1,000 revisions.
var keepNothing = []string{"--compact-min-retain", "0"}

func TestKine_storage(t *testing.T) {
	onDatabases(t, func(t *testing.T, name string, empty database) {
		open := func(t testing.TB, needs storetest.Needs) storetest.Backend {
			k := startKine(t, empty(t), "http://"+freePorts(t, 1)[0], keepNothing...)
			backend, err := etcd.Open(
				t.Context(),
				etcd.Options{Endpoints: []string{k.endpoint}, Prefix: "/", NoWatchCache: true, StartTimeout: patience},
			)
			if err != nil {
				t.Fatal(err)
			}
			client := k.client()
			t.Cleanup(func() { _ = client.Close() })
			return &compacting{Backend: backend, client: client}
		}
		storetest.RunStorageWith(t, "kine on "+name, open, storetest.Traits{
			NoBookmarks: true, NoSizes: true, NoConditionalWrites: true, CompactionRaises: true,
			NotRun: map[string]string{
				"RunTestOptionalWatchBookmarksWithCorrectResourceVersion": "as with etcd",
				"RunTestGetListWithErrorAggregation":                      "as with etcd",
			},
		})
	})
}

func TestKine_api(t *testing.T) {
	onDatabases(t, func(t *testing.T, name string, empty database) {
		k := startKine(t, empty(t), "http://"+freePorts(t, 1)[0], keepNothing...)
		const ranges = "it compares no ranges of keys, and refuses these writes"
		runAPI(t, "kine on "+name, []string{k.endpoint}, map[string]string{
			"TestAdmitCreateIsExactUnderConcurrency":     ranges,
			"TestAdmitCreateWithDeletesRacing":           ranges,
			"TestAdmitCreateSeesAllOthersAndNothingElse": ranges,
			"TestAdmitUpdateIsExactUnderConcurrency":     ranges,
			"TestAdmitUpdateSeesAllOthersAndNothingElse": ranges,
			"TestListersReadWhatIsStored":                ranges,
		})
	})
}

// TestKine_replicasUnderFaults kills kine and replicas of a server. There is one kine: with several over one
// PostgreSQL, a list at one may briefly miss writes at another, which this test detects.
func TestKine_replicasUnderFaults(t *testing.T) {
	onDatabases(t, func(t *testing.T, name string, empty database) {
		k := startKine(t, empty(t), "http://"+freePorts(t, 1)[0])
		replicas := startReplicas(t, 2, []string{k.endpoint})
		underFaults(t, "kine on "+name, 1, replicas, 4, func(round int) fault {
			if round%2 == 0 {
				r := replicas[round/2%len(replicas)]
				return fault{"a replica is killed", faultWrites, r.kill, r.start}
			}
			return fault{"kine is killed", 0, k.kill, k.start}
		})
	})
}

// TestKine_socket runs kine beside a server as the howto describes.
func TestKine_socket(t *testing.T) {
	onDatabases(t, func(t *testing.T, _ string, empty database) {
		dir, err := os.MkdirTemp("", "kine") // a socket's path is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		k := startKine(t, empty(t), "unix://"+filepath.Join(dir, "kine.sock"))
		backend, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{k.endpoint}, StartTimeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = backend.Close() })
		pods := openPods(t, backend)
		w := watchFrom(t, pods, mustCreate(t, pods, "a").ResourceVersion)
		k.kill()
		testwait.NoError(t, "health without kine", func(context.Context) error { return unhealthy(backend, k.endpoint) })
		k.start()
		testwait.NoError(t, "health with kine", func(context.Context) error { return backend.Health() })
		createAnyway(t, pods, "b")
		expectAdded(t, w, "b")
	})
}

// TestKine_watchLatency measures the time that a change takes to reach a watch at the same kine, at another kine over
// the same database, and at etcd itself.
func TestKine_watchLatency(t *testing.T) {
	measure := func(t *testing.T, name, write, watch string, times int) {
		t.Helper()
		open := func(endpoint string) storage.Interface {
			backend, err := etcd.Open(
				t.Context(),
				etcd.Options{Endpoints: []string{endpoint}, Prefix: "/" + strings.ReplaceAll(name, " ", "-"), StartTimeout: patience},
			)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = backend.Close() })
			return openPods(t, backend)
		}
		pods := open(write)
		w := watchFrom(t, open(watch), mustCreate(t, pods, "first").ResourceVersion)
		var writes, events []time.Duration
		for i := range times {
			name := fmt.Sprint("pod-", i)
			began := time.Now()
			mustCreate(t, pods, name)
			written := time.Now()
			expectAdded(t, w, name)
			writes, events = append(writes, written.Sub(began)), append(events, time.Since(written))
		}
		slices.Sort(writes)
		slices.Sort(events)
		fmt.Printf(
			"watches: %s: a create takes %v (median of %d), its event %v more (at most %v)\n",
			name,
			writes[times/2].Round(100*time.Microsecond),
			times,
			events[times/2].Round(100*time.Microsecond),
			events[times-1].Round(time.Millisecond),
		)
	}
	onDatabases(t, func(t *testing.T, name string, empty database) {
		database := empty(t)
		one := startKine(t, database, "http://"+freePorts(t, 1)[0])
		measure(t, "kine on "+name, one.endpoint, one.endpoint, 100)
		if name == "PostgreSQL" {
			other := startKine(t, database, "http://"+freePorts(t, 1)[0])
			measure(t, "two kines on "+name, one.endpoint, other.endpoint, 5)
		}
	})
	t.Run("etcd", func(t *testing.T) {
		endpoint := startProcesses(t, 1).members[0].direct
		measure(t, "etcd", endpoint, endpoint, 100)
	})
}
