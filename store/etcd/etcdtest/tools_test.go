package etcdtest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

// verb runs a verb of shop storage and returns its output and its exit code.
func verb(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"storage"}, args...)...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleServer)
	hold, release := io.Pipe() // it ends with its standard input
	defer release.Close()
	cmd.Stdin = hold
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state, err := cmd.Process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	_ = release.Close()
	_ = cmd.Wait() // the pipe's end
	return out.String(), state.ExitCode()
}

func mustVerb(t *testing.T, args ...string) string {
	t.Helper()
	out, code := verb(t, args...)
	if code != 0 {
		t.Fatalf("shop storage %s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// identities returns the properties of objects that have to stay the same, by name.
func identities(t *testing.T, config *rest.Config) (all map[string]string, lowest, highest uint64) {
	t.Helper()
	list, err := dynamic.NewForConfigOrDie(config).Resource(widgets).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all = map[string]string{}
	for _, item := range list.Items {
		version, err := strconv.ParseUint(item.GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if lowest == 0 || version < lowest {
			lowest = version
		}
		highest = max(highest, version)
		all[item.GetName()] = fmt.Sprint(
			item.GetUID(),
			item.GetCreationTimestamp(),
			item.GetFinalizers(),
			item.GetGeneration(),
			item.GetManagedFields(),
			item.Object["spec"],
		)
	}
	if version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64); err == nil {
		highest = max(highest, version)
	}
	return all, lowest, highest
}

func checkSame(t *testing.T, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d objects, want %d", len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s is\n%s, was\n%s", name, got[name], want[name])
		}
	}
}

// serveReady runs a server until it is stopped.
func serveReady(t *testing.T, options annex.Options) (*rest.Config, func()) {
	t.Helper()
	config, ready, stop := run(t, options)
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return config, func() {
		t.Helper()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func onEtcd(members []*member) annex.Options {
	return annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})}
}

// stocked creates a data directory with widgets in it, and returns their identities.
func stocked(t *testing.T, count int) (data string, want map[string]string, highest uint64) {
	t.Helper()
	data = filepath.Join(t.TempDir(), "data")
	config, stop := serveReady(t, annex.Options{Storage: embedded.Dir(""), DataDir: data})
	client := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	for i := range count {
		widget := newWidget(fmt.Sprintf("w-%03d", i))
		widget.SetFinalizers([]string{"example.com/keep"})
		if _, err := client.Create(t.Context(), widget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want, _, highest = identities(t, config)
	stop()
	return data, want, highest
}

// restored starts an etcd from a snapshot file, as etcdutl snapshot restore does.
func restored(t *testing.T, file string) []*member {
	t.Helper()
	return startCluster(t, 1, func(c *embed.Config) {
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath:        file,
			Name:                c.Name,
			OutputDataDir:       c.Dir,
			PeerURLs:            []string{c.AdvertisePeerUrls[0].String()},
			InitialCluster:      c.Name + "=" + c.AdvertisePeerUrls[0].String(),
			InitialClusterToken: c.InitialClusterToken,
		})
		if err != nil {
			t.Fatalf("etcdutl snapshot restore: %v", err)
		}
	})
}

func TestMigrate_viaSnapshotAndBack(t *testing.T) {
	data, want, highest := stocked(t, 30)
	file := filepath.Join(t.TempDir(), "new.db")
	t.Log(mustVerb(t, "migrate", "--from", "embedded", "--data-dir", data, "--to", "etcd-snapshot="+file))
	members := restored(t, file)
	config, stop := serveReady(t, onEtcd(members))
	got, lowest, _ := identities(t, config)
	checkSame(t, got, want)
	if lowest <= highest {
		t.Errorf("resource versions begin at %d, and %d was seen before", lowest, highest)
	}
	checkExpired(t, config, highest)
	checkExpired(t, config, lowest)
	client := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	if _, err := client.Create(t.Context(), newWidget("afterwards"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want, _, inEtcd := identities(t, config)
	stop()

	servers := strings.Join(endpoints(members), ",")
	for _, args := range [][]string{
		{"stats", "--storage=etcd", "--etcd-servers", servers},
		{"verify", "--storage=etcd", "--etcd-servers", servers},
		{"compact", "--storage=etcd", "--etcd-servers", servers},
	} {
		t.Log(mustVerb(t, args...))
	}
	dump := mustVerb(t, "dump", "--storage=etcd", "--etcd-servers", servers, "--resource=widgets.shop.example.com")
	if lines := strings.Count(dump, `"kind":"Widget"`); lines != len(want) {
		t.Errorf("the dump has %d lines, want %d", lines, len(want))
	}

	back := filepath.Join(t.TempDir(), "back")
	args := []string{"migrate", "--from=etcd", "--etcd-servers", servers, "--to=embedded", "--to-data-dir", back}
	t.Log(mustVerb(t, args...))
	if again := mustVerb(t, args...); !strings.Contains(again, " 0 written") {
		t.Errorf("again: %s", again)
	}
	config, stop = serveReady(t, annex.Options{Storage: embedded.Dir(""), DataDir: back})
	defer stop()
	got, lowest, _ = identities(t, config)
	checkSame(t, got, want)
	if lowest <= inEtcd {
		t.Errorf("resource versions begin at %d, and %d was seen before", lowest, inEtcd)
	}
	checkExpired(t, config, inEtcd)
}

// checkExpired checks that a watch from a revision gets an expired error.
func checkExpired(t *testing.T, config *rest.Config, revision uint64) {
	t.Helper()
	w, err := dynamic.NewForConfigOrDie(config).
		Resource(widgets).
		Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatUint(revision, 10)})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	if err != nil {
		t.Errorf("watch from %d: %v", revision, err)
		return
	}
	defer w.Stop()
	select {
	case event := <-w.ResultChan():
		if event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			t.Errorf("watch from %d: got %s %v, want expired", revision, event.Type, event.Object)
		}
	case <-time.After(patience):
		t.Errorf("watch from %d: nothing came", revision)
	}
}

func TestMigrate_liveEtcd(t *testing.T) {
	data, want, highest := stocked(t, 30)
	members := startCluster(t, 1, nil)
	servers := strings.Join(endpoints(members), ",")
	args := []string{"migrate", "--from=embedded", "--data-dir", data, "--to=etcd", "--to-etcd-servers", servers}
	out, code := verb(t, args...)
	if code != 2 ||
		!strings.Contains(out, fmt.Sprintf("etcd is at revision 1, embedded in %s at %d", filepath.Join(data, "storage"), highest)) ||
		!strings.Contains(out, "--to etcd-snapshot=FILE") {
		t.Fatalf("behind: exit %d: %s", code, out)
	}
	c := client(t, members)
	if found, err := c.Get(t.Context(), "/registry/", clientv3.WithPrefix()); err != nil || found.Count != 0 {
		t.Fatalf("refused, but %d keys are there (%v)", found.Count, err)
	}
	for range highest {
		if _, err := c.Put(t.Context(), "/elsewhere", ""); err != nil {
			t.Fatal(err)
		}
	}
	out = mustVerb(t, args...)
	var objects, written int
	if _, err := fmt.Sscanf(
		out,
		"etcd: %d objects, %d written",
		&objects,
		&written,
	); err != nil || objects <= 30 ||
		written != objects { // the namespace and the roles, too
		t.Errorf("got %s, %v", out, err)
	}
	if out = mustVerb(t, args...); !strings.Contains(out, " 0 written") {
		t.Errorf("again: %s", out)
	}
	config, stop := serveReady(t, onEtcd(members))
	got, lowest, _ := identities(t, config)
	checkSame(t, got, want)
	if lowest <= highest {
		t.Errorf("resource versions begin at %d, and %d was seen before", lowest, highest)
	}
	changed := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	widget, err := changed.Get(t.Context(), "w-003", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	widget.SetLabels(map[string]string{"changed": "in-etcd"})
	if _, err := changed.Update(t.Context(), widget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()
	out, code = verb(t, args...)
	if code != 2 || !strings.Contains(out, "/shop.example.com/widgets/default/w-003 differs; nothing was changed: to overwrite them") {
		t.Errorf("one that differs: exit %d: %s", code, out)
	}
	if out = mustVerb(t, append(args, "--overwrite")...); !strings.Contains(out, " 1 written") {
		t.Errorf("overwriting: %s", out)
	}
}

// TestMigrate_lowerRevisions_informers covers an informer whose resource versions are higher than those of the etcd that its server has
// moved to.
func TestMigrate_lowerRevisions_informers(t *testing.T) {
	data, _, _ := stocked(t, 5)
	high := filepath.Join(t.TempDir(), "high")
	mustVerb(t, "migrate", "--from=embedded", "--data-dir", data, "--to=embedded", "--to-data-dir", high)
	config, stop := serveReady(t, annex.Options{Storage: embedded.Dir(""), DataDir: high})
	u, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	started := startInformed(t, config)
	want, _, highest := identities(t, config)
	stop()
	mustVerb(t, "dump", "--data-dir", high)

	members := startCluster(t, 1, nil)
	servers := strings.Join(endpoints(members), ",")
	mustVerb(t, "migrate", "--from=embedded", "--data-dir", high, "--to=etcd", "--to-etcd-servers", servers, "--reset-watches")
	options := onEtcd(members)
	options.DataDir, options.Listen = high, u.Host
	config, stop = serveReady(t, options)
	defer stop()
	got, _, now := identities(t, config)
	checkSame(t, got, want)
	if now >= highest {
		t.Fatalf("resource version %d is not lower than %d", now, highest)
	}
	client := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	resumed, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatUint(highest, 10)})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Stop()
	if _, err := client.Create(t.Context(), newWidget("afterwards"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// A new informer sees everything, as does a restarted one.
	fresh := startInformed(t, config)
	if !fresh.has("afterwards") {
		t.Error("an informer that is started afterwards does not see the new object")
	}
	// A watch that is merely resumed waits for a later revision than its own, so clients have to be restarted.
	select {
	case event, open := <-resumed.ResultChan():
		t.Errorf("a resumed watch got %s %v (%v): the documentation says that it waits", event.Type, event.Object, open)
	default:
	}
	// An informer that lists again asks for the newest version when the server rejects its version as too large.
	testwait.NoError(t, "the informer that went on has the new object", func(context.Context) error {
		if !started.has("afterwards") {
			return fmt.Errorf("it has asked for %q", started.requests())
		}
		return nil
	})
	t.Logf("it asked for %q", started.requests())
}

// informed is an informer that runs until the test ends.
type informed struct {
	cache.SharedIndexInformer
	mu  sync.Mutex
	log []string
}

func startInformed(t *testing.T, config *rest.Config) *informed {
	t.Helper()
	i := &informed{}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asking{next, i} })
	i.SharedIndexInformer = dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0).
		ForResource(widgets).
		Informer()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); i.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if !cache.WaitForCacheSync(t.Context().Done(), i.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	return i
}

func (i *informed) has(name string) bool {
	_, ok, _ := i.GetStore().GetByKey("default/" + name)
	return ok
}

// requests returns the requests of the informer with their responses.
func (i *informed) requests() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.log)
}

// asking records the requests of an informer.
type asking struct {
	http.RoundTripper
	informed *informed
}

func (a asking) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(r)
	query, what := r.URL.Query(), "list"
	if query.Get("watch") != "" {
		what = "watch"
	}
	if query.Get("sendInitialEvents") == "true" {
		what = "watch with initial events"
	}
	result := "no connection"
	if err == nil {
		result = answer.Status
	}
	line := fmt.Sprintf("%s from %q: %s", what, query.Get("resourceVersion"), result)
	a.informed.mu.Lock()
	defer a.informed.mu.Unlock()
	if n := len(a.informed.log); n == 0 || a.informed.log[n-1] != line {
		a.informed.log = append(a.informed.log, line)
	}
	return answer, err
}

func TestMigrate_encryptedObjects(t *testing.T) {
	config := writeFile(t, filepath.Join(t.TempDir(), "encryption.yaml"), []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ['*.*']
  providers: [{aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}]
`))
	data := filepath.Join(t.TempDir(), "data")
	options := annex.Options{Storage: embedded.Dir(""), DataDir: data, EncryptionConfigFile: config}
	client, stop := serveReady(t, options)
	if _, err := dynamic.NewForConfigOrDie(client).
		Resource(widgets).
		Namespace("default").
		Create(t.Context(), newWidget("secret"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want, _, _ := identities(t, client)
	stop()
	file := filepath.Join(t.TempDir(), "new.db")
	args := []string{"migrate", "--from=embedded", "--data-dir", data, "--to", "etcd-snapshot=" + file}
	out, code := verb(t, args...)
	if code != 2 || !strings.Contains(out, "encrypted, and the encryption configuration is missing") ||
		!strings.Contains(out, "name the --encryption-provider-config") {
		t.Errorf("without the keys: exit %d: %s", code, out)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it wrote a file nevertheless")
	}
	if out := mustVerb(t, "dump", "--data-dir", data); !strings.Contains(out, `"base64"`) {
		t.Errorf("the dump is not as it is stored: %s", out)
	}
	if out, code := verb(t, "verify", "--data-dir", data); code != 1 || !strings.Contains(out, "encrypted") {
		t.Errorf("verify without the keys: exit %d: %s", code, out)
	}
	mustVerb(t, "verify", "--data-dir", data, "--encryption-provider-config", config)
	mustVerb(t, append(args, "--encryption-provider-config", config)...)
	members := restored(t, file)
	options = onEtcd(members)
	options.EncryptionConfigFile = config
	client, stop = serveReady(t, options)
	got, _, _ := identities(t, client)
	checkSame(t, got, want)
	stop()

	// A backup holds stored values unchanged; a restore to the same place needs no keys.
	backup, again := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "again")
	mustVerb(t, "backup", "--data-dir", data, "--to", backup)
	mustVerb(t, "restore", "--from", backup, "--data-dir", again)
	client, stop = serveReady(t, annex.Options{Storage: embedded.Dir(""), DataDir: again, EncryptionConfigFile: config})
	got, _, _ = identities(t, client)
	checkSame(t, got, want)
	stop()
	out, code = verb(t, "restore", "--from", backup, "--storage=etcd", "--etcd-servers", strings.Join(endpoints(members), ","), "--overwrite")
	if code != 2 || !strings.Contains(out, "encrypted") {
		t.Errorf("restore to etcd without the keys: exit %d: %s", code, out)
	}
}
