package apitest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

var widgetResource = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}

// verb runs a verb of shop storage, which must succeed, and returns its standard output. It drops warnings, because
// they depend on the machine: on a nearly full disk, for example.
func verb(t *testing.T, args ...string) string {
	t.Helper()
	cmd := verbCommand(t, args...)
	var out, warnings bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &warnings
	if err := cmd.Run(); err != nil {
		t.Fatalf("shop storage %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), warnings.String())
	}
	return out.String()
}

// tryVerb runs shop storage, and returns all of its output.
func tryVerb(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := verbCommand(t, args...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	return out.String(), err
}

func verbCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	p := prepare(t)
	return exec.CommandContext(t.Context(), p.Path, append([]string{"storage"}, args...)...)
}

// atPort runs shop serve at a port that another process had before.
func atPort(t *testing.T, data, port string) *process {
	t.Helper()
	return shopProgram(t, "--data-dir", data, "--secure-port", port)
}

// portOf returns the port of a program.
func portOf(t *testing.T, p *process) string {
	t.Helper()
	_, address, _ := strings.Cut(p.lines[0], " listens on ")
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

// pair is two widgets, of which the second is written after the first, with the same number. At any one revision its
// number is equal to the first one's, or one behind.
type pair struct {
	client *client
	name   string
}

func (p pair) write(n int) error {
	for _, half := range []string{"first", "second"} {
		path, body := widgetsPath+"/"+p.name+"-"+half, widgetBody(p.name+"-"+half, n)
		if n == 0 {
			if a := p.client.post(widgetsPath, body); a.code != http.StatusCreated {
				return fmt.Errorf("create: %d %s", a.code, a.raw)
			}
			continue
		}
		if a := p.client.do(http.MethodPatch, path, body, "Content-Type", mergePatch); a.code != http.StatusOK {
			return fmt.Errorf("patch: %d %s", a.code, a.raw)
		}
	}
	return nil
}

func widgetBody(name string, n int) map[string]any {
	return map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "finalizers": []string{"example.com/keep"}},
		"spec":     map[string]any{"options": map[string]string{"n": strconv.Itoa(n)}},
	}
}

// contentsOf reads a backup: the stored JSON of every key.
func contentsOf(t *testing.T, file string) (maintenance.Header, map[string]string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := maintenance.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for {
		_, v, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r.Header, values
		}
		if err != nil {
			t.Fatal(err)
		}
		if v.Revision > r.Header.Storages[0].Revision {
			t.Errorf("%s is at revision %d, the backup at %d", v.Key, v.Revision, r.Header.Storages[0].Revision)
		}
		values[v.Key] = string(v.Data)
	}
}

func numberIn(t *testing.T, stored string) int {
	t.Helper()
	var w struct {
		Spec struct {
			Options map[string]string `json:"options"`
		} `json:"spec"`
	}
	if err := json.Unmarshal([]byte(stored), &w); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(w.Spec.Options["n"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The storages of a server elsewhere are unknown here, and flags for them are not needed.
func TestStorageVerbs_remoteServer(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := prepareProgram(t, "foldered", "--data-dir", data)
	p.launch(t)
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	c.post(shelvesPath, `{"metadata":{"name":"s"}}`).want(http.StatusCreated)
	for _, test := range []struct{ verb, want string }{
		{"stats", "shelves.shop.example.com  1 "},
		{"dump --resource shelves.shop.example.com", `"name":"s"`},
	} {
		args := append([]string{"storage"}, strings.Fields(test.verb)...)
		out, err := exec.CommandContext(t.Context(), p.Path, append(args, "--kubeconfig", filepath.Join(data, "kubeconfig"))...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.want) {
			t.Errorf("storage %s: %v, without %q:\n%s", test.verb, err, test.want, out)
		}
	}
	if err := p.stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestBackup_concurrentWrites_oneRevision(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data)
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	const writers = 16
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var all, first sync.WaitGroup
	first.Add(writers)
	for i := range writers {
		all.Go(func() {
			w := pair{c, fmt.Sprint("pair-", i)}
			for n := 0; writing.Err() == nil; n++ {
				if err := w.write(n); err != nil {
					t.Error(err)
					stop()
				}
				if n == 0 {
					first.Done()
				}
			}
		})
	}
	first.Wait()
	moved := false
	for i := range 5 {
		file := filepath.Join(t.TempDir(), "backup")
		verb(t, "backup", "--data-dir", data, "--to", file)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("the backup has mode %v", info.Mode())
		}
		_, stored := contentsOf(t, file)
		for i := range writers {
			key := fmt.Sprintf("/shop.example.com/widgets/default/pair-%d-", i)
			one, two := numberIn(t, stored[key+"first"]), numberIn(t, stored[key+"second"])
			if two > one || two < one-1 {
				t.Errorf("pair %d: the first is at %d, the second at %d: not of one revision", i, one, two)
			}
			moved = moved || one != two
		}
		t.Logf("backup %d: %d objects", i, len(stored))
	}
	stop()
	all.Wait()
	t.Logf("a backup between the two writes of a pair: %v", moved)

	// At rest, backup and dump are equal, online and offline.
	online := filepath.Join(t.TempDir(), "online")
	verb(t, "backup", "--data-dir", data, "--to", online)
	_, want := contentsOf(t, online)
	dumps := []string{verb(t, "dump", "--data-dir", data)}
	if out := verb(t, "verify", "--data-dir", data); !strings.Contains(out, " 0 damages") {
		t.Errorf("verify of the running server: %s", out)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	dumps = append(dumps, verb(t, "dump", "--data-dir", data))
	for _, dump := range dumps {
		got := map[string]string{}
		for line := range strings.Lines(dump) {
			var l maintenance.Line
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			got[l.Key] = string(l.Value)
			if form, _ := convert.FormOf(
				[]byte(want[l.Key]),
			); l.MediaType != "" && l.MediaType == form.MediaType &&
				strings.HasPrefix(got[l.Key], `{"kind":"`+form.Kind+`","apiVersion":"`+form.GroupVersion().String()+`"`) {
				got[l.Key] = want[l.Key] // as JSON
			}
		}
		if len(got) != len(want) {
			t.Errorf("the dump has %d objects, the backup %d", len(got), len(want))
		}
		for key := range want {
			if strings.TrimSpace(got[key]) != strings.TrimSpace(want[key]) {
				t.Errorf("%s: dumped %s, backed up %s", key, got[key], want[key])
			}
		}
	}

	// A restore reproduces the backup, except for the resource versions.
	restored := filepath.Join(t.TempDir(), "restored")
	verb(t, "restore", "--from", online, "--data-dir", restored)
	again := filepath.Join(t.TempDir(), "again")
	verb(t, "backup", "--data-dir", restored, "--to", again)
	header, got := contentsOf(t, again)
	if before, _ := contentsOf(t, online); header.Storages[0].Revision < before.Storages[0].Revision+1_000_000_000 {
		t.Errorf("restored at revision %d, backed up at %d", header.Storages[0].Revision, before.Storages[0].Revision)
	}
	if len(got) != len(want) {
		t.Errorf("restored %d objects, want %d", len(got), len(want))
	}
	for key := range want {
		if got[key] != want[key] {
			t.Errorf("%s: restored %s, backed up %s", key, got[key], want[key])
		}
	}
}

func TestRestore_informersListAgain(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data)
	port := portOf(t, p)
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	for _, name := range []string{"kept", "changed", "deleted"} {
		c.post(widgetsPath, widgetBody(name, 1)).want(http.StatusCreated)
	}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(c.config), 0).ForResource(widgetResource).Informer()
	events := &versions{}
	if _, err := informer.AddEventHandler(events); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	defer stop()
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	ended.Go(func() { informer.RunWithContext(running) })
	if !cache.WaitForCacheSync(running.Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	backup := filepath.Join(t.TempDir(), "backup")
	verb(t, "backup", "--data-dir", data, "--to", backup)
	before := map[string]string{}
	for _, item := range informer.GetStore().List() {
		u := item.(*unstructured.Unstructured)
		before[u.GetName()] = string(u.GetUID()) + u.GetCreationTimestamp().String()
	}

	// Writes after the backup are undone.
	c.do(http.MethodPatch, widgetsPath+"/changed", widgetBody("changed", 2), "Content-Type", mergePatch).want(http.StatusOK)
	c.do(http.MethodPatch, widgetsPath+"/deleted", map[string]any{"metadata": map[string]any{"finalizers": nil}}, "Content-Type", mergePatch).
		want(http.StatusOK)
	c.do(http.MethodDelete, widgetsPath+"/deleted", nil).want(http.StatusOK)
	c.post(widgetsPath, widgetBody("later", 1)).want(http.StatusCreated)
	testwait.Until(t, "the informer has seen later", func() bool { _, ok, _ := informer.GetStore().GetByKey("default/later"); return ok })
	highest := events.highest()
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if out, err := tryVerb(t, "restore", "--from", backup, "--data-dir", data); err == nil {
		t.Fatalf("restored over what was there: %s", out)
	}
	verb(t, "restore", "--from", backup, "--data-dir", data, "--replace")

	p = atPort(t, data, port)
	a := c.get(widgetsPath + "?watch=1&timeoutSeconds=5&resourceVersion=" + strconv.FormatUint(highest, 10))
	if !strings.Contains(string(a.raw), `"reason":"Expired"`) {
		t.Errorf("a watch from before the restore got %d %s", a.code, a.raw)
	}
	testwait.Until(t, "the informer is where the backup is", func() bool {
		_, later, _ := informer.GetStore().GetByKey("default/later")
		_, deleted, _ := informer.GetStore().GetByKey("default/deleted")
		return deleted && !later
	})
	list := informer.GetStore().List()
	if len(list) != len(before) {
		t.Errorf("the informer has %d objects, want %d", len(list), len(before))
	}
	for _, item := range list {
		u := item.(*unstructured.Unstructured)
		if got := string(u.GetUID()) + u.GetCreationTimestamp().String(); got != before[u.GetName()] {
			t.Errorf("%s is %s, was %s", u.GetName(), got, before[u.GetName()])
		}
		if n, _, _ := unstructured.NestedString(u.Object, "spec", "options", "n"); n != "1" {
			t.Errorf("%s is at %s", u.GetName(), n)
		}
		if len(u.GetFinalizers()) != 1 {
			t.Errorf("%s has the finalizers %v", u.GetName(), u.GetFinalizers())
		}
		if version := versionOf(u); version <= highest {
			t.Errorf("%s has resource version %d, and %d was seen before", u.GetName(), version, highest)
		}
	}
	c.post(widgetsPath, widgetBody("afterwards", 1)).want(http.StatusCreated)
	testwait.Until(t, "the informer goes on", func() bool { _, ok, _ := informer.GetStore().GetByKey("default/afterwards"); return ok })
	stop()
	ended.Wait()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// versions keeps the highest resource version that an informer has seen.
type versions struct {
	mu   sync.Mutex
	most uint64
}

func (v *versions) see(object any) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.most = max(v.most, versionOf(u))
	}
}

func (v *versions) OnAdd(object any, _ bool) { v.see(object) }
func (v *versions) OnUpdate(_, object any)   { v.see(object) }
func (v *versions) OnDelete(object any)      { v.see(object) }

func (v *versions) highest() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.most
}

func versionOf(object metav1.Object) uint64 {
	version, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return version
}

func TestRestore_killed_keepsOldData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	full, old := filepath.Join(dir, "full"), filepath.Join(dir, "old")
	var records []journal.Record
	for i := range 3000 {
		records = append(records, shelfRecord(uint64(i+2), fmt.Sprintf("shelf-%d", i)))
	}
	for data, records := range map[string][]journal.Record{full: records, old: records[:1]} {
		if err := storeRecords(filepath.Join(data, "storage"), records...); err != nil {
			t.Fatal(err)
		}
	}
	backup := filepath.Join(dir, "backup")
	verb(t, "backup", "--data-dir", full, "--to", backup)
	count := func(data string) string {
		t.Helper()
		return fmt.Sprint(strings.Count(verb(t, "dump", "--data-dir", data), "\n"))
	}

	for name, args := range map[string][]string{
		"restore":       {"restore", "--from", backup, "--data-dir"},
		"migrate":       {"migrate", "--from=embedded", "--to=embedded", "--data-dir", full, "--to-data-dir"},
		"restore above": {"restore", "--from", backup, "--replace", "--data-dir"},
	} {
		kills := 0
		for range 5 {
			data := filepath.Join(dir, name)
			replaces := name == "restore above"
			if replaces {
				data = old
			}
			cmd := verbCommand(t, append(args, data)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			building := filepath.Join(data, "storage.restoring")
			testwait.Until(t, "it is written", func() bool {
				_, err := os.Stat(building)
				return err == nil || cmd.ProcessState != nil
			})
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if _, err := os.Stat(building); err != nil {
				continue // it was faster
			}
			kills++
			if replaces {
				if got := count(data); got != "1" {
					t.Errorf("%s: a killed one left %s objects", name, got)
				}
			} else if out, err := tryVerb(t, "dump", "--data-dir", data); err == nil {
				t.Errorf("%s: a killed one left a storage: %.200s", name, out)
			}
			verb(t, append(args, data)...)
			if got := count(data); got != "3000" {
				t.Errorf("%s: %s objects afterwards", name, got)
			}
			break
		}
		if kills == 0 {
			t.Errorf("%s was never killed in the middle", name)
		}
	}
}

func shelfRecord(revision uint64, name string) journal.Record {
	value := fmt.Sprintf(`{"kind":"Shelf","apiVersion":"shop.example.com/v1","metadata":{"name":%q,"uid":"%d"}}`, name, revision)
	return journal.Record{
		Revision:  revision,
		Key:       "/shop.example.com/shelves/" + name,
		Value:     []byte(value),
		Committed: time.Unix(1, 0).UTC(),
	}
}

func TestRestore_interruptedAtLastStep_isFinished(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if err := storeRecords(filepath.Join(data, "storage.restored"), shelfRecord(2, "s")); err != nil {
		t.Fatal(err)
	}
	p := shopProgram(t, "--data-dir", data)
	clientFrom(t, filepath.Join(data, "kubeconfig")).get(shelvesPath + "/s").want(http.StatusOK)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestStorageVerbs_administratorsOnly(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data, "--token-auth-file", tokenFile(t))
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	for token, code := range map[string]int{"secret": http.StatusForbidden, "root": http.StatusOK, "mistyped": http.StatusUnauthorized} {
		for _, path := range []string{"/storage/backup", "/storage/stats", "/storage/verify"} {
			c.stranger(token).get(path).want(code)
		}
		want := code
		c.stranger(token).do(http.MethodPost, "/storage/compact", nil).want(want)
	}
	c.do(http.MethodPost, "/storage/backup", nil).want(http.StatusMethodNotAllowed)
	c.get("/storage/compact").want(http.StatusMethodNotAllowed)
	c.get("/storage/stats?storage=tape").want(http.StatusNotFound)
	c.get("/storage/").want(http.StatusNotFound)
	c.do(http.MethodPost, "/storage/compact?revision=later", nil).want(http.StatusBadRequest)
	c.do(http.MethodPost, "/storage/compact?revision=999999", nil).want(http.StatusBadRequest)
	if out, err := tryVerb(
		t,
		"compact",
		"--data-dir",
		data,
		"--revision",
		"999999",
	); exitCode(err) != 2 ||
		!strings.Contains(out, "the revision does not exist yet: 999999") {
		t.Errorf("compact ahead: %v %s", err, out)
	}
	if out, err := tryVerb(
		t,
		"restore",
		"--from",
		filepath.Join(data, "kubeconfig"),
		"--data-dir",
		data,
	); exitCode(err) != 2 ||
		!strings.Contains(out, "unusable backup") {
		t.Errorf("restore of a kubeconfig: %v %s", err, out)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	verb(t, "backup", "--data-dir", data, "--to", backup)
	if out, err := tryVerb(
		t,
		"restore",
		"--from",
		backup,
		"--replace",
		"--data-dir",
		data,
	); exitCode(err) != 2 ||
		!strings.Contains(out, "stop the server first") {
		t.Errorf("restore under a server: %v %s", err, out)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// TestVerbs_dataDirectoryInUse_namesUser lets a verb find the data directory in use.
func TestVerbs_dataDirectoryInUse_namesUser(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir("")}
	t.Run("a server", func(t *testing.T) {
		startWith(t, shop(), options)
		if _, err := storageVerb(t, options, "stats"); err != nil {
			t.Errorf("stats: %v", err)
		}
		_, err := storageVerb(t, options, "dump", "--etcd-servers", "http://127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), "--etcd-servers has no effect, because no resource uses etcd") {
			t.Errorf("with an etcd that is not the server's: %v", err)
		}
	})
	lock, err := vfs.Default.Lock(filepath.Join(options.DataDir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	_, err = storageVerb(t, options, "stats")
	if err == nil || !strings.Contains(err.Error(), "another storage verb is using it, or a server is starting or "+
		"stopping") || strings.Contains(err.Error(), "refused") {
		t.Errorf("another verb: %v", err)
	}
}
