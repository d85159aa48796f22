package apitest_test

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/files"
)

// tree is the directory of a server that keeps its objects in files, as a person sees it.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) *tree {
	about(t, files.Name)
	return &tree{t, filepath.Join(t.TempDir(), "objects")}
}

func (f *tree) options() annex.Options {
	return annex.Options{Storage: files.Dir(f.root), DataDir: filepath.Join(filepath.Dir(f.root), "data")}
}

// serve runs a server on the tree.
func (f *tree) serve() *client {
	f.t.Helper()
	c, _ := f.serveUntil()
	return c
}

func (f *tree) serveUntil() (c *client, stop func() error) {
	f.t.Helper()
	instance, stop := run(f.t, shop(), f.options())
	return clientOf(f.t, instance), stop
}

// widget returns the path of a widget's file in the namespace default.
func (f *tree) widget(name string) string {
	return f.path("shop.example.com/widgets/default/" + name + ".yaml")
}

func (f *tree) path(name string) string { return filepath.Join(f.root, filepath.FromSlash(name)) }

// write does what cat > file does.
func (f *tree) write(path, content string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *tree) read(path string) string {
	f.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

func (f *tree) edit(path, before, after string) {
	f.t.Helper()
	content := f.read(path)
	if !strings.Contains(content, before) {
		f.t.Fatalf("%s does not contain %q:\n%s", path, before, content)
	}
	f.write(path, strings.Replace(content, before, after, 1))
}

func (f *tree) remove(path string) {
	f.t.Helper()
	if err := os.Remove(path); err != nil {
		f.t.Fatal(err)
	}
}

// gone waits until there is no file.
func (f *tree) gone(path string) {
	f.t.Helper()
	testwait.Until(f.t, path+" is gone", func() bool { _, err := os.Lstat(path); return os.IsNotExist(err) })
}

// shows waits until a file exists and contains a text: the API answers before the file is written.
func (f *tree) shows(path, part string) {
	f.t.Helper()
	testwait.Until(f.t, fmt.Sprintf("%s contains %q", path, part), func() bool {
		content, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(content), part)
	})
}

// handWidget returns a file as a person writes it.
func handWidget(name, size string) string {
	return fmt.Sprintf(`# what %[1]s is for
apiVersion: shop.example.com/v1
kind: Widget
metadata:
  name: %[1]s
spec:
  size: %[2]s # a good size
`, name, size)
}

// broken waits until the number of rejected files is n.
func (c *client) broken(n int) {
	c.t.Helper()
	testwait.Until(c.t, fmt.Sprintf("%d broken files", n), func() bool {
		return strings.Contains(string(c.get("/metrics").raw), fmt.Sprintf("annex_storage_broken_files{storage=\"files\"} %d\n", n))
	})
}

func TestFiles_content(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	c.create("a", metadata(fields{"labels": fields{"tier": "front", "yes": "no"}, "annotations": fields{"note": "two\nlines"}}),
		spec(fields{"size": "small", "replicas": 3, "parts": []any{fields{"name": "wheel", "count": 4}}}))
	want := `apiVersion: shop.example.com/v1
kind: Widget
metadata:
  name: a
  namespace: default
  labels:
    tier: front
    "yes": "no"
  annotations:
    note: |-
      two
      lines
spec:
  replicas: 3
  size: small
  parts:
    - name: wheel
      count: 4
`
	f.shows(f.widget("a"), want)
	// A status is not for people, and the file does not depend on it.
	c.patch(mergePatch, widgetsPath+"/a/status", status(fields{"phase": "Fine"})).want(http.StatusOK)
	if got := f.read(f.widget("a")); got != want {
		t.Errorf("after a change of the status:\n%s", got)
	}
	c.patch(mergePatch, widgetsPath+"/a", spec(fields{"size": "large"})).want(http.StatusOK)
	f.shows(f.widget("a"), strings.Replace(want, "small", "large", 1))
	c.post(shelvesPath, shelf("s")).want(http.StatusCreated)
	f.shows(f.path("shop.example.com/shelves/_cluster/s.yaml"), "apiVersion: shop.example.com/v1\nkind: Shelf\nmetadata:\n  name: s\n")
	for _, path := range []string{f.widget("a"), f.path(".annex/state")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", path, info.Mode(), err)
		}
	}
	c.delete(widgetsPath+"/a", nil).want(http.StatusOK)
	f.gone(f.widget("a"))
}

func TestFiles_handWrittenTree(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	f.write(f.widget("a"), handWidget("a", "small"))
	f.write(f.path("shop.example.com/widgets/team/b.yaml"), strings.Replace(handWidget("b", "large"), "v1\n", "v1beta1\n", 1))
	f.write(
		f.path("shop.example.com/shelves/_cluster/s.yaml"),
		"{apiVersion: shop.example.com/v1, kind: Shelf, metadata: {name: s}, widgets: [a, b]}",
	)
	f.write(f.path("README.md"), "not an object")
	f.write(f.path(".git/config"), "not an object")
	for restart := range 3 {
		c, stop := f.serveUntil()
		a := c.widget("a")
		if a.UID == "" || a.CreationTimestamp.IsZero() || a.Generation != 1 || a.Spec.Size != "small" {
			t.Errorf("start %d: got %v", restart, a)
		}
		if got := c.get("/apis/shop.example.com/v1/namespaces/team/widgets/b").want(http.StatusOK).str("spec", "size"); got != "large" {
			t.Errorf("the widget written as v1beta1 is %s", got)
		}
		c.get("/api/v1/namespaces/team").want(http.StatusOK)
		c.get(shelvesPath + "/s").want(http.StatusOK)
		c.broken(0)
		// The files lack nothing, so not a byte is changed.
		if got := f.read(f.widget("a")); got != handWidget("a", "small") {
			t.Errorf("start %d: the file was changed:\n%s", restart, got)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFiles_editsAreWrites(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	config, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := config.Resource(schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}).
		Namespace("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: c.get(widgetsPath).str("metadata", "resourceVersion")})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	w := c.watch(widgetsPath + "?watch=1&resourceVersion=" + c.get(widgetsPath).str("metadata", "resourceVersion"))

	f.write(f.widget("a"), handWidget("a", "small"))
	added := w.want("ADDED a")
	if uid := text(added.Object, "metadata", "uid"); uid == "" {
		t.Error("no UID")
	}
	f.edit(f.widget("a"), "size: small", "size: large")
	modified := w.want("MODIFIED a")
	if got := text(modified.Object, "metadata", "generation"); got != "2" {
		t.Errorf("generation %s", got)
	}
	if text(modified.Object, "metadata", "uid") != text(added.Object, "metadata", "uid") {
		t.Error("it is another object")
	}
	// A comment is no change, and stays. A person's text also stays when the status changes.
	f.edit(f.widget("a"), "# what a is for", "# what else a is for")
	testwait.Until(t, "the edit is read", func() bool {
		return c.patch(mergePatch, widgetsPath+"/a/status", status(fields{"phase": "Fine"})).code == http.StatusOK
	})
	w.want("MODIFIED a")
	if content := f.read(f.widget("a")); !strings.Contains(content, "# what else") {
		t.Errorf("the comment is lost:\n%s", content)
	}
	// An edit does not lose the fields that only the API has.
	f.edit(f.widget("a"), "size: large", "size: medium")
	if got := text(w.want("MODIFIED a").Object, "status", "phase"); got != "Fine" {
		t.Errorf("the phase is %q", got)
	}
	f.edit(f.widget("a"), "name: a\n", "name: a\n  labels: {tier: front}\n")
	w.want("MODIFIED a")
	if got := c.get(widgetsPath + "?labelSelector=tier%3Dfront").names(); len(got) != 1 {
		t.Errorf("selected: %v", got)
	}

	// An editor that writes a new file and moves it over the old one.
	f.write(f.path(".a.new"), handWidget("a", "small"))
	if err := os.Rename(f.path(".a.new"), f.widget("a")); err != nil {
		t.Fatal(err)
	}
	w.want("MODIFIED a")
	// Another name means another object.
	f.write(f.widget("b"), handWidget("b", "small"))
	w.want("ADDED b")
	f.remove(f.widget("a"))
	w.want("DELETED a")
	c.get(widgetsPath + "/a").want(http.StatusNotFound)
	// A directory that is moved in, as a whole.
	f.write(f.path(".team/c.yaml"), handWidget("c", "large"))
	if err := os.Rename(f.path(".team"), f.path("shop.example.com/widgets/team")); err != nil {
		t.Fatal(err)
	}
	team := c.watch("/apis/shop.example.com/v1/namespaces/team/widgets?watch=1")
	team.want("ADDED c")
	if err := os.RemoveAll(f.path("shop.example.com/widgets/team")); err != nil {
		t.Fatal(err)
	}
	team.want("DELETED c")

	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Modified, watch.Modified, watch.Modified,
		watch.Added, watch.Deleted} {
		if event := <-seen.ResultChan(); event.Type != want {
			t.Errorf("the dynamic client saw %s, want %s", event.Type, want)
		}
	}
}

func TestFiles_concurrentEditAndWrite(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	w := c.watch(widgetsPath + "?watch=1")
	f.write(f.widget("a"), handWidget("a", "small"))
	w.want("ADDED a")
	c.patch(mergePatch, widgetsPath+"/a", spec(fields{"replicas": 2})).want(http.StatusOK)
	w.want("MODIFIED a")
	f.shows(f.widget("a"), "replicas: 2")
	if content := f.read(
		f.widget("a"),
	); !strings.HasPrefix(content, "# what a is for\n") ||
		!strings.Contains(content, "size: small # a good size\n") {
		t.Errorf("the comments are lost:\n%s", content)
	}
	f.edit(f.widget("a"), "replicas: 2", "replicas: 5")
	w.want("MODIFIED a")
	if got := *c.widget("a").Spec.Replicas; got != 5 {
		t.Errorf("%d replicas", got)
	}
	f.edit(f.widget("a"), "  replicas: 5\n", "")
	w.want("MODIFIED a")
	if got := c.widget("a").Spec.Replicas; got != nil {
		t.Errorf("%d replicas", *got)
	}
	// The output of kubectl get is accepted, except for the fields that only the server may set.
	f.write(f.widget("a"), string(c.get(widgetsPath+"/a", "Accept", yamlType).raw)+"")
	f.edit(f.widget("a"), "size: small", "size: large")
	before := c.widget("a")
	f.edit(f.widget("a"), string(before.UID), "00000000-0000-0000-0000-000000000000")
	after := w.want("MODIFIED a")
	if text(after.Object, "metadata", "uid") != string(before.UID) {
		t.Error("a file has changed the UID")
	}
	testwait.Until(t, "the file without what is not a person's", func() bool {
		content := f.read(f.widget("a"))
		return !strings.Contains(content, "uid") && !strings.Contains(content, "managedFields") && strings.Contains(content, "size: large")
	})
}

func TestFiles_deletion_finalizers(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	w := c.watch(widgetsPath + "?watch=1")
	c.create("a", metadata(fields{"finalizers": []any{"example.com/hold"}}))
	w.want("ADDED a")
	f.shows(f.widget("a"), "example.com/hold")
	f.remove(f.widget("a"))
	if deleting := w.want("MODIFIED a"); text(deleting.Object, "metadata", "deletionTimestamp") == "" {
		t.Error("no deletion timestamp")
	}
	testwait.Until(t, "the file is written again", func() bool {
		content, err := os.ReadFile(f.widget("a"))
		return err == nil && strings.Contains(string(content), "example.com/hold")
	})
	// A second deletion changes nothing, and the file comes back.
	f.remove(f.widget("a"))
	testwait.Until(t, "the file is written again", func() bool { _, err := os.Stat(f.widget("a")); return err == nil })
	f.edit(f.widget("a"), "  finalizers:\n    - example.com/hold\n", "")
	w.want("DELETED a")
	testwait.Until(t, "the file goes", func() bool { _, err := os.Stat(f.widget("a")); return os.IsNotExist(err) })
	c.broken(0)

	// With a grace period, the file stays as long as the object.
	shelves := c.watch(shelvesPath + "?watch=1")
	c.post(shelvesPath, shelf("s")).want(http.StatusCreated)
	f.shows(f.path("shop.example.com/shelves/_cluster/s.yaml"), "name: s")
	f.remove(f.path("shop.example.com/shelves/_cluster/s.yaml"))
	shelves.want("ADDED s", "MODIFIED s")
	c.delete(shelvesPath+"/s", fields{"gracePeriodSeconds": 0}).want(http.StatusOK)
	testwait.Until(t, "the file goes", func() bool {
		_, err := os.Stat(f.path("shop.example.com/shelves/_cluster/s.yaml"))
		return os.IsNotExist(err) && c.get(shelvesPath+"/s").code == http.StatusNotFound
	})
}

func TestFiles_namespaces(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	c.namespace("team")
	c.post("/apis/shop.example.com/v1/namespaces/team/widgets", widget("a")).want(http.StatusCreated)
	c.delete("/api/v1/namespaces/team", nil).want(http.StatusOK)
	testwait.Until(t, "the namespace goes", func() bool { return c.get("/api/v1/namespaces/team").code == http.StatusNotFound })
	f.gone(f.path("shop.example.com/widgets/team/a.yaml"))
	f.gone(f.path("core/namespaces/_cluster/team.yaml"))

	f.write(f.path("core/namespaces/_cluster/other.yaml"), "{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
	testwait.Until(t, "the namespace comes", func() bool { return c.get("/api/v1/namespaces/other").code == http.StatusOK })
	f.remove(f.path("core/namespaces/_cluster/other.yaml"))
	testwait.Until(t, "the namespace goes", func() bool { return c.get("/api/v1/namespaces/other").code == http.StatusNotFound })
	// The API does not let this one be deleted either.
	f.shows(f.path("core/namespaces/_cluster/default.yaml"), "name: default")
	f.remove(f.path("core/namespaces/_cluster/default.yaml"))
	testwait.Until(
		t,
		"the file comes back",
		func() bool { _, err := os.Stat(f.path("core/namespaces/_cluster/default.yaml")); return err == nil },
	)
	c.get("/api/v1/namespaces/default").want(http.StatusOK)
}

func TestFiles_broken_areReportedAndKept(t *testing.T) {
	if testing.Short() {
		t.Skip("runs 29 servers")
	}
	t.Parallel()
	good := handWidget("a", "small")
	for name, test := range map[string]struct {
		path, content string
		want          string // in the log, empty if the file stands for no object
	}{
		"no YAML":        {"a.yaml", "a: [", "not YAML"},
		"a tab":          {"a.yaml", "a:\n\tb: c", "not YAML"},
		"nothing":        {"a.yaml", "", "empty"},
		"only a comment": {"a.yaml", "# later", "empty"},
		"a list":         {"a.yaml", "- a", "not an object"},
		"a field twice":  {"a.yaml", good + "spec:\n  size: large\n", "not YAML"},
		"two documents":  {"a.yaml", good + "---\n" + good, "more than one document"},
		"unknown field":  {"a.yaml", strings.Replace(good, "size:", "sice:", 1), `unknown field "spec.sice"`},
		"wrong type":     {"a.yaml", strings.Replace(good, "size: small", "replicas: many", 1), "spec.replicas"},
		"invalid":        {"a.yaml", handWidget("a", "huge"), "spec.size: Unsupported value"},
		"no name":        {"a.yaml", strings.Replace(good, "name: a", "labels: {}", 1), "metadata.name is missing"},
		"another name":   {"a.yaml", handWidget("b", "small"), `metadata.name is "b": the file must have the name b.yaml`},
		"another namespace": {"a.yaml", strings.Replace(good, "name: a", "name: a\n  namespace: team", 1), `metadata.namespace is "team", ` +
			`but the file is in the directory default`},
		"another kind":    {"a.yaml", strings.Replace(good, "Widget", "Shelf", 1), "it is a Shelf"},
		"another group":   {"a.yaml", strings.Replace(good, "shop.example", "store.example", 1), "store.example.com/v1"},
		"another version": {"a.yaml", strings.Replace(good, "/v1", "/v2", 1), "v1|v1beta1"},
		"no kind":         {"a.yaml", strings.Replace(good, "kind: Widget", "", 1), "apiVersion or kind is missing"},
		"no UTF-8":        {"a.yaml", good + "# \xff", "not UTF-8"},
		"too large":       {"a.yaml", good + "# " + strings.Repeat("x", 3<<20), "larger than 3 MiB"},
		"two files":       {"a.yml", good, ""},
		"JSON":            {"b.json", `{}`, ""},
		"a foreign file":  {"notes.txt", "milk", ""},
		"a bad name":      {"A.yaml", handWidget("A", "small"), ""},
		"a binary file":   {"b.bin", "\x00", ""},
		"no namespace":    {"../stray.yaml", good, ""},
		"another place":   {"../../../stray.yaml", good, ""},
		"too deep":        {"deep/a.yaml", good, ""},
		"no kind's place": {"../../gadgets/default/a.yaml", good, ""},
		"a directory":     {"b.yaml/a.yaml", good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTree(t)
			c := f.serve()
			c.create("a", spec(fields{"size": "medium"}))
			f.shows(f.widget("a"), "size: medium")
			path := filepath.Join(filepath.Dir(f.widget("a")), filepath.FromSlash(test.path))
			f.write(path, test.content)
			c.broken(1)
			c.get("/readyz").want(http.StatusOK)
			c.get("/readyz?verbose").contains("[+]files (some are not served, see the server's log) ok")
			if got := c.widget("a").Spec.Size; got != "medium" {
				t.Errorf("served with size %s", got)
			}
			// Clients can write nevertheless; the file follows when it has been repaired.
			c.patch(mergePatch, widgetsPath+"/a", spec(fields{"replicas": 7})).want(http.StatusOK)
			c.broken(1)
			if got := f.read(path); got != test.content {
				t.Errorf("the file has been changed:\n%s", got)
			}
			if test.want != "" {
				f.write(path, handWidget("a", "large"))
				c.broken(0)
				testwait.Until(t, "the mended file is served", func() bool { return c.widget("a").Spec.Size == "large" })
				if got := c.widget("a").Spec.Replicas; got == nil || *got != 7 {
					t.Error("what a client wrote meanwhile is lost")
				}
				f.shows(path, "replicas: 7")
				return
			}
			if strings.Contains(test.path, "/") && !strings.HasPrefix(test.path, "..") {
				path = filepath.Dir(path)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			c.broken(0)
		})
	}
}

func TestFiles_broken_areNotOverwritten(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	f.write(f.widget("a"), "not yet")
	c.broken(1)
	c.create("a", spec(fields{"size": "small"}))
	c.patch(mergePatch, widgetsPath+"/a", spec(fields{"size": "large"})).want(http.StatusOK)
	c.create("b")
	f.shows(f.widget("b"), "name: b") // files are written
	if got := f.read(f.widget("a")); got != "not yet" {
		t.Errorf("the file is now %q", got)
	}
	c.broken(1)
	// The file never belonged to the object, so its removal deletes nothing.
	f.remove(f.widget("a"))
	f.shows(f.widget("a"), "size: large")
	c.broken(0)
}

func TestFiles_links_areRejected(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c := f.serve()
	c.create("b")
	f.shows(f.widget("b"), "name: b")
	secret := f.path(".secret")
	f.write(secret, handWidget("a", "small"))
	if err := os.Symlink(secret, f.widget("a")); err != nil {
		t.Fatal(err)
	}
	c.broken(1)
	c.get(widgetsPath + "/a").want(http.StatusNotFound)
	c.create("a")
	c.create("c")
	f.shows(f.widget("c"), "name: c")
	c.broken(1)
	if got := f.read(secret); got != handWidget("a", "small") {
		t.Errorf("what is behind the link has been changed:\n%s", got)
	}
	// A link to a directory is reported, too; no object in it is lost.
	if err := os.Rename(filepath.Dir(f.widget("b")), f.path(".moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(f.path(".moved"), filepath.Dir(f.widget("b"))); err != nil {
		t.Fatal(err)
	}
	c.broken(2)
	c.widget("b")
}

func TestFiles_changedWhileStopped(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c, stop := f.serveUntil()
	for _, name := range []string{"edited", "removed", "kept", "spoilt", "touched"} {
		c.create(name, spec(fields{"size": "small"}))
	}
	uid, revision := c.widget("edited").UID, c.get(widgetsPath).str("metadata", "resourceVersion")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f.edit(f.widget("edited"), "small", "large")
	f.remove(f.widget("removed"))
	f.write(f.widget("added"), handWidget("added", "small"))
	f.write(f.widget("spoilt"), "{")
	f.write(f.widget("touched"), f.read(f.widget("touched")))
	for range 2 {
		c, stop = f.serveUntil()
		if got := c.widget("edited"); got.Spec.Size != "large" || got.UID != uid {
			t.Errorf("edited: %v", got)
		}
		c.get(widgetsPath + "/removed").want(http.StatusNotFound)
		for name, size := range map[string]string{"added": "small", "spoilt": "small", "kept": "small", "touched": "small"} {
			if got := c.widget(name).Spec.Size; got != size {
				t.Errorf("%s has size %s", name, got)
			}
		}
		c.broken(1)
		now := c.get(widgetsPath).str("metadata", "resourceVersion")
		if len(now) < len(revision) || len(now) == len(revision) && now <= revision {
			t.Errorf("the resource version went from %s to %s", revision, now)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFiles_gitCheckout(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	f := newTree(t)
	command := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(
			t.Context(),
			git,
			append([]string{"-C", f.root, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	c := f.serve()
	for i := range 20 {
		c.create(fmt.Sprintf("w-%d", i), spec(fields{"size": "small"}))
	}
	for i := range 20 {
		f.shows(f.widget(fmt.Sprintf("w-%d", i)), "size: small")
	}
	f.write(f.path(".gitignore"), ".annex/\n")
	command("init", "-q")
	command("add", ".")
	command("commit", "-qm", "one")
	uid := c.widget("w-0").UID
	for i := range 20 {
		switch path := fmt.Sprintf("%s/w-%d", widgetsPath, i); {
		case i < 10:
			c.patch(mergePatch, path, spec(fields{"size": "large"})).want(http.StatusOK)
		case i < 15:
			c.delete(path, nil).want(http.StatusOK)
		}
	}
	c.create("later")
	f.shows(f.widget("later"), "name: later")
	for i := range 15 {
		if path := f.widget(fmt.Sprintf("w-%d", i)); i < 10 {
			f.shows(path, "size: large")
		} else {
			f.gone(path)
		}
	}
	command("add", ".")
	command("commit", "-qm", "two")
	command("checkout", "-q", "HEAD~1")
	testwait.Until(t, "everything is as it was", func() bool {
		items := c.get(widgetsPath).items()
		if len(items) != 20 {
			return false
		}
		for _, item := range items {
			if text(item, "spec", "size") != "small" {
				return false
			}
		}
		return true
	})
	if c.widget("w-0").UID != uid {
		t.Error("an object that was changed is another one now")
	}
	command("checkout", "-q", "-")
	testwait.Until(t, "everything is as it was then", func() bool {
		return len(c.get(widgetsPath).items()) == 16 && c.get(widgetsPath+"/later").code == http.StatusOK && c.widget("w-3").Spec.Size == "large"
	})
	c.broken(0)
}

// TestFiles_racingEditsAndWrites lets a person and clients change one object as fast as they can. Every edit must be
// served before the next one, and in the end all see the same state.
func TestFiles_racingEditsAndWrites(t *testing.T) {
	t.Parallel()
	const edits = 15
	f := newTree(t)
	c := f.serve()
	c.create("a", spec(fields{"size": "small"}))
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if answer := c.patch(mergePatch, widgetsPath+"/a", spec(fields{"replicas": (client*1000 + n) % 100})); answer.code != http.StatusOK {
					t.Errorf("patch: %d %s", answer.code, answer.raw)
					return
				}
			}
		})
	}
	w := c.watch(widgetsPath + "?watch=1&resourceVersion=" + c.get(widgetsPath).str("metadata", "resourceVersion"))
	for n := range edits {
		f.write(f.widget("a"), strings.Replace(handWidget("a", "small"), "spec:", fmt.Sprintf("spec:\n  options: {edit: \"%d\"}", n), 1))
		for text(w.next().Object, "spec", "options", "edit") != fmt.Sprint(n) {
		}
	}
	close(stop)
	clients.Wait()
	// The last write is in the file, and stays.
	want := c.widget("a")
	if want.Spec.Replicas != nil {
		f.shows(f.widget("a"), fmt.Sprintf("replicas: %d", *want.Spec.Replicas))
	}
	c.broken(0)
	c.patch(mergePatch, widgetsPath+"/a", spec(fields{"replicas": 42})).want(http.StatusOK)
}

func TestFiles_encryptedObjects_haveNone(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	// One object is in the tree before there are keys.
	c, stop := f.serveUntil()
	c.create("before", spec(fields{"size": "small"}))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f.shows(f.widget("before"), "size: small")

	options := f.options()
	options.EncryptionConfigFile = encryptionConfig(t, keyed("aescbc", "key1", secret1), unencrypted)
	f.write(f.widget("hand"), handWidget("hand", "small"))
	instance, stop := run(t, shop(), options)
	c = clientOf(t, instance)
	c.create("a", spec(fields{"size": "small"}))
	c.patch(mergePatch, widgetsPath+"/before", spec(fields{"replicas": 2})).want(http.StatusOK)
	f.gone(f.widget("hand"))
	f.gone(f.widget("before"))
	// A person's file is accepted, but does not stay readable.
	f.write(f.widget("a"), handWidget("a", "large"))
	f.gone(f.widget("a"))
	if got := c.widget("a").Spec.Size; got != "large" {
		t.Errorf("a has size %s", got)
	}
	c.broken(0)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "hand", "before"} {
		f.gone(f.widget(name))
	}
	err := filepath.WalkDir(f.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.Contains(f.read(path), "a good size") {
			t.Errorf("%s has the plain text", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	instance, _ = run(t, shop(), options)
	c = clientOf(t, instance)
	if c.widget("a").Spec.Size != "large" || c.widget("hand").Spec.Size != "small" || c.widget("before").Spec.Size != "small" {
		t.Error("after a restart they are others")
	}
}

// TestFiles_lostRecords_objectsSurvive removes the records that identify an object. Before there was a journal, the
// object then got a new UID, and lost its status.
func TestFiles_lostRecords_objectsSurvive(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c, stop := f.serveUntil()
	c.create("a", spec(fields{"size": "small"}))
	c.patch(mergePatch, widgetsPath+"/a/status", status(fields{"phase": "Fine"})).want(http.StatusOK)
	before := c.widget("a")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f.remove(f.path(".annex/state"))
	c, stop = f.serveUntil()
	if after := c.widget("a"); after.UID != before.UID || after.Status.Phase != "Fine" || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("it was %v and is %v", before, after)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, pattern := range []string{"journal", "journal/*.sst"} {
		found, err := filepath.Glob(f.path(".annex/" + pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		parts = append(parts, found...)
	}
	for _, path := range parts {
		aside := f.path(".aside")
		if err := os.Rename(path, aside); err != nil {
			t.Fatal(err)
		}
		if _, err := annex.New(t.Context(), shop(), f.options()); err == nil || !strings.Contains(err.Error(), f.root) {
			t.Errorf("without %s: got %v", path, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, path); err != nil {
			t.Fatal(err)
		}
	}
	c = f.serve()
	if after := c.widget("a"); after.UID != before.UID {
		t.Errorf("it was %v and is %v", before, after)
	}
}

func TestFiles_restart_keepsHistory(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	c, stop := f.serveUntil()
	begin := c.get(widgetsPath).str("metadata", "resourceVersion")
	c.create("a", spec(fields{"size": "small"}))
	c.patch(mergePatch, widgetsPath+"/a", spec(fields{"size": "large"})).want(http.StatusOK)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c = f.serve()
	c.watch(widgetsPath+"?watch=1&resourceVersion="+begin).want("ADDED a", "MODIFIED a")
}

func TestFiles_secondServer_isRejected(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	f.serve()
	options := f.options()
	options.DataDir = t.TempDir()
	if _, err := annex.New(t.Context(), shop(), options); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("got %v", err)
	}
}
