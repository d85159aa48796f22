package conformance

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

// suiteVariable holds the suite that a process has to run instead of the tests.
const suiteVariable = "ANNEX_CONFORMANCE_SUITE"

var (
	only   = flag.String("only", "", "run upstream's tests that match the regular expression, and no others")
	report = flag.String("report", "", "keep the servers' logs and the outcomes, as JSON, in the directory")
)

func TestMain(m *testing.M) {
	if encoded := os.Getenv(suiteVariable); encoded != "" {
		var s suite
		err := json.Unmarshal([]byte(encoded), &s)
		if err == nil {
			go endWithParent()
			err = s.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// endWithParent ends a process for a suite when its parent has ended, for whatever reason: the parent holds the other
// end of the standard input.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// Every pattern of the table matches tests that upstream has.
func TestNotRun_matchesUpstreamTests(t *testing.T) {
	all := runSuite(t, t.TempDir(), suite{Kubeconfig: "none", List: true})
	if len(all) < 150 {
		t.Errorf("%d tests, which are not all", len(all))
	}
	for _, row := range notRun {
		pattern := regexp.MustCompile(row.pattern)
		if !slices.ContainsFunc(all, func(o outcome) bool { return pattern.MatchString(o.Name) }) {
			t.Errorf("no test matches %s, which is not run because it %s", row.pattern, row.reason)
		}
	}
}

// ofWorkloads are the controllers whose objects the tests of the garbage collector need. The pods stay pending.
var ofWorkloads = []string{
	"deployment-controller", "replicaset-controller", "replicationcontroller-controller", "job-controller", "cronjob-controller",
}

func TestKubeAPIServer(t *testing.T) {
	t.Parallel()
	dir := directory(t, "kube-apiserver")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cluster, err := kube.Start(ctx, kube.Options{
		Bin: programs(t), Dir: dir,
		Controllers: append([]string{
			"namespace-controller", "garbage-collector-controller", "resourcequota-controller", "serviceaccount-controller",
			"root-ca-certificate-publisher-controller", "storage-version-migrator-controller", "validatingadmissionpolicy-status-controller",
			"persistentvolumeclaim-protection-controller",
		}, ofWorkloads...),
		APIServerArgs: []string{"--etcd-compaction-interval", "30s"}, // a test waits for two of these
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, cluster.Admin()); err != nil {
		t.Fatal(err)
	}
	conform(t, dir, kubeconfig)
}

func TestAnnex(t *testing.T) {
	t.Parallel()
	dir := directory(t, "annex")
	program := filepath.Join(dir, "tool")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, ".")
	build.Dir = "../../cmd/annex"
	build.Env = append(os.Environ(), "GOWORK=", "PWD=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	kubeconfig := filepath.Join(dir, "data", "kubeconfig")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := kube.Run(ctx, dir, kube.Program{
		Name: "annex", Path: program, Ports: 1,
		Args: func(ports []int) []string {
			return []string{
				"serve", "--workloads", "--data-dir", filepath.Join(dir, "data"),
				"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]),
				"--controllers", "*," + strings.Join(ofWorkloads, ","),
				"--history-age", "30s", "--history-revisions", "100", // a test waits until a revision is compacted
			}
		},
		Ready: func(ctx context.Context, _ []int) error {
			return exec.CommandContext(ctx, filepath.Join(programs(t), "kubectl"), "--kubeconfig", kubeconfig, "get", "--raw", "/readyz").Run()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	heartbeats(t, kubeconfig)
	conform(t, dir, kubeconfig)
}

// heartbeats renews a Lease, as nodes and controllers of a cluster do: tests wait until a revision is compacted, and
// without writes, the last ones never are.
func heartbeats(t *testing.T, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	leases := kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "heartbeats"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				t.Errorf("renew the lease: %v", err)
				return
			}
			lease = renewed
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func programs(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// directory returns the directory for a server's files. No other user may read it.
func directory(t *testing.T, name string) string {
	t.Helper()
	if *report == "" {
		return t.TempDir()
	}
	dir := filepath.Join(*report, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// conform runs all tests that are not in the table against a server, and prints their outcomes.
func conform(t *testing.T, dir, kubeconfig string) {
	t.Helper()
	s := suite{Kubeconfig: kubeconfig, Kubectl: filepath.Join(programs(t), "kubectl"), Only: *only}
	for _, row := range notRun {
		s.Skip = append(s.Skip, row.pattern)
	}
	asked := regexp.MustCompile(*only)
	var passed, skipped, left, failed []string
	for _, o := range runSuite(t, dir, s) {
		reason, known := reasonNotToRun(o.Name)
		switch {
		case o.failed():
			failed = append(failed, o.Name)
			t.Errorf("%s: %s after %.0f s: %s\n%s", o.Name, o.State, o.Seconds, o.Message, o.Log)
		case o.State == "passed":
			passed = append(passed, fmt.Sprintf("%s (%.0f s)", o.Name, o.Seconds))
		case !asked.MatchString(o.Name):
		case known:
			left = append(left, o.Name+": "+reason)
		case o.Message != "":
			skipped = append(skipped, o.Name+": "+o.Message)
		default:
			t.Errorf("%s is %s, and not in the table of those that are not run", o.Name, o.State)
		}
	}
	for _, part := range []struct {
		what  string
		names []string
	}{{"passed", passed}, {"failed", failed}, {"skipped by upstream", skipped}, {"not run", left}} {
		slices.Sort(part.names)
		fmt.Printf("conformance: %s: %d %s\n", t.Name(), len(part.names), part.what)
		for _, name := range part.names {
			fmt.Printf("conformance: %s: %s: %s\n", t.Name(), part.what, name)
		}
	}
	if len(passed)+len(failed)+len(skipped) == 0 {
		t.Error("no test was run")
	}
}

func reasonNotToRun(test string) (string, bool) {
	for _, row := range notRun {
		if regexp.MustCompile(row.pattern).MatchString(test) {
			return row.reason, true
		}
	}
	return "", false
}

// runSuite runs a suite in a process of its own. It returns the outcome of each of upstream's tests.
func runSuite(t *testing.T, dir string, s suite) []outcome {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.Report = filepath.Join(dir, "outcomes.json")
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "suite.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), suiteVariable+"="+string(encoded))
	cmd.Stdout, cmd.Stderr = log, log
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	failed := cmd.Run()
	content, err := os.ReadFile(s.Report)
	if err != nil || failed != nil {
		said, _ := os.ReadFile(log.Name()) // best effort: the process has failed
		t.Fatalf("the suite: %v, %v\n%s", failed, err, said)
	}
	var outcomes []outcome
	if err := json.Unmarshal(content, &outcomes); err != nil {
		t.Fatal(err)
	}
	return outcomes
}
