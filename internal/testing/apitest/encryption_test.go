package apitest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/encryption/kmstest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// Secrets of the tests' keys.
const (
	secret1 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	secret2 = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
)

// encryptionConfig writes a file by which all resources are encrypted with the first of some providers.
func encryptionConfig(t *testing.T, providers ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	writeEncryptionConfig(t, file, providers...)
	return file
}

// writeEncryptionConfig replaces such a file as an editor does.
func writeEncryptionConfig(t *testing.T, file string, providers ...string) {
	t.Helper()
	writeFile(t, file, encryptionRule("*.*", providers...))
}

// encryptionRule returns a file with one rule.
func encryptionRule(resource string, providers ...string) string {
	return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['%s']\n  "+
		"providers: [%s]\n", resource, strings.Join(providers, ", "))
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// keyed returns a provider with keys, given as names and secrets.
func keyed(provider string, pairs ...string) string {
	var keys []string
	for i := 0; i < len(pairs); i += 2 {
		keys = append(keys, fmt.Sprintf("{name: %s, secret: %q}", pairs[i], pairs[i+1]))
	}
	return fmt.Sprintf("{%s: {keys: [%s]}}", provider, strings.Join(keys, ", "))
}

const unencrypted = "{identity: {}}"

// storedWidgets returns the content of the widgets' storage: current widgets by name, and on an embedded journal all
// other records by revision. No server may use it.
func storedWidgets(t *testing.T, options annex.Options) map[string]string {
	t.Helper()
	const resource, prefix = "widgets.shop.example.com", "/shop.example.com/widgets/default/"
	all, current := map[string]string{}, map[uint64]bool{}
	out, err := storageVerb(t, options, "dump", "--resource", resource)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		var stored maintenance.Line
		decode(t, []byte(line), &stored)
		current[stored.Revision] = true
		all[strings.TrimPrefix(stored.Key, prefix)] = string(stored.Value) + string(stored.Base64)
	}
	if options = placed(t, options); storageName(options) != embedded.Name {
		return all
	}
	j, err := embedded.Open(filepath.Join(options.DataDir, "storage"), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	if _, err := j.Replay(t.Context(), func(r journal.Record) error {
		if !r.Deleted && !current[r.Revision] && strings.HasPrefix(r.Key, prefix) {
			all[strconv.FormatUint(r.Revision, 10)] = string(r.Value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// inFiles reports whether any file below a directory contains a text.
func inFiles(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found = found || strings.Contains(string(data), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEncryption_allProviders(t *testing.T) {
	plugin := kmstest.New(t, "one")
	plugin.Start(t)
	for name, provider := range map[string]string{
		"aescbc":    keyed("aescbc", "key1", secret1),
		"aesgcm":    keyed("aesgcm", "key1", secret1),
		"secretbox": keyed("secretbox", "key1", secret1),
		"kms":       fmt.Sprintf("{kms: {apiVersion: v2, name: key1, endpoint: %q}}", plugin.Endpoint()),
		"identity":  unencrypted,
	} {
		for _, storage := range []annex.Storage{memory.Storage(), embedded.Dir("")} {
			t.Run(name+" "+storage.Name(), func(t *testing.T) {
				options := annex.Options{DataDir: t.TempDir(), Storage: storage, EncryptionConfigFile: encryptionConfig(t, provider)}
				t.Run("serve", func(t *testing.T) { checkLife(t, startWith(t, shop(), options)) })
				if storageName(placed(t, options)) == memory.Name {
					return
				}
				t.Run("serve again", func(t *testing.T) {
					c := startWith(t, shop(), options)
					if got := c.widget("kept").Spec.Options["note"]; got != "hush" {
						t.Errorf("got the note %q", got)
					}
				})
				if name != "identity" && inFiles(t, options.DataDir, "hush") {
					t.Error("it is in a file as plain text")
				}
				values := storedWidgets(t, options)
				if values["kept"] == "" {
					t.Errorf("stored is %q", values)
				}
				for key, v := range values {
					if name == "identity" && strings.HasPrefix(v, "{") || strings.HasPrefix(v, "k8s:enc:"+name+":") && !strings.Contains(v, "hush") {
						continue
					}
					t.Errorf("%s is stored as %.60q", key, v)
				}
			})
		}
	}
}

// checkLife does every operation on widgets, and leaves one named kept.
func checkLife(t *testing.T, c *client) {
	note := spec(fields{"size": "small", "options": fields{"note": "hush"}})
	c.create("kept", note)
	begin := c.get(widgetsPath).want(http.StatusOK).str("metadata", "resourceVersion")
	events := c.watch(widgetsPath + "?watch=1&resourceVersion=" + begin)
	gone := c.create("gone", note)
	if gone.Spec.Options["note"] != "hush" {
		t.Errorf("created %v", gone)
	}
	gone.Spec.Options["note"] = "hush hush"
	c.put(widgetsPath+"/gone", gone).want(http.StatusOK)
	c.patch(mergePatch, widgetsPath+"/gone", `{"metadata":{"labels":{"a":"b"}}}`).want(http.StatusOK)
	if got := c.get(widgetsPath + "?labelSelector=a%3Db").want(http.StatusOK).names(); len(got) != 1 || got[0] != "gone" {
		t.Errorf("listed %v", got)
	}
	if got := c.widget("gone").Spec.Options["note"]; got != "hush hush" {
		t.Errorf("got the note %q", got)
	}
	c.delete(widgetsPath+"/gone", nil).want(http.StatusOK)
	if metrics := string(
		c.get("/metrics").want(http.StatusOK).raw,
	); !strings.Contains(
		metrics,
		`annex_storage_encryption_info{group="shop.example.com",key="`,
	) {
		t.Error("the metrics do not say how widgets are encrypted")
	}
	events.want("ADDED gone", "MODIFIED gone", "MODIFIED gone", "DELETED gone")
	c.get(widgetsPath+"/gone").refused(http.StatusNotFound, metav1.StatusReasonNotFound)
}

func TestEncryption_unreadableObjects_serverDoesNotStart(t *testing.T) {
	inPlainText(t)
	options := annex.Options{
		DataDir:              t.TempDir(),
		Storage:              embedded.Dir(""),
		EncryptionConfigFile: encryptionConfig(t, keyed("aescbc", "key1", secret1)),
	}
	t.Run("serve", func(t *testing.T) { startWith(t, shop(), options).create("kept", spec(fields{"size": "small"})) })
	stored := func() string { return fmt.Sprint(storedWidgets(t, options)) }
	before := stored()

	for name, test := range map[string]struct {
		providers []string
		want      string
	}{
		"no file":    {nil, "there is no encryption configuration"},
		"wrong key":  {[]string{keyed("aescbc", "key1", secret2)}, "restore the key with which it was encrypted"},
		"other key":  {[]string{keyed("aescbc", "key2", secret2), unencrypted}, `provider aescbc and key "key1", which the file does not have`},
		"plain text": {[]string{unencrypted}, `provider aescbc and key "key1", which the file does not have`},
	} {
		t.Run(name, func(t *testing.T) {
			refused := options
			if refused.EncryptionConfigFile = ""; test.providers != nil {
				refused.EncryptionConfigFile = encryptionConfig(t, test.providers...)
			}
			_, err := annex.New(t.Context(), shop(), placed(t, refused))
			usage := (*annex.ConfigError)(nil)
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
			exit := (*exec.ExitError)(nil)
			if _, err := storageVerb(
				t,
				refused,
				"rewrite",
			); !errors.As(err, &exit) || exit.ExitCode() != 2 ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("storage rewrite: %v", err)
			}
			if after := stored(); after != before {
				t.Errorf("the storage was changed from %s to %s", before, after)
			}
		})
	}
	t.Run("serve again", func(t *testing.T) { startWith(t, shop(), options).widget("kept") })
}

// A value without its key is useless, but it must be possible to delete it.
func TestEncryption_unreadableObjects_canBeDeleted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, file, encryptionRule("widgets.shop.example.com", keyed("aesgcm", "lost", secret1)))
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir(""), EncryptionConfigFile: file}
	t.Run("serve", func(t *testing.T) {
		startWith(t, shop(), options).create("lost", spec(fields{"size": "small"}))
	})
	writeFile(t, file, encryptionRule("widgets.shop.example.com", keyed("aesgcm", "key", secret2)))
	options.ServeDespiteUndecodable = true
	c := startWith(t, shop(), options)
	c.create("readable", spec(fields{"size": "small"}))
	c.widget("readable")
	c.get(widgetsPath+"/lost").
		refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "/shop.example.com/widgets/default/lost",
			"no matching key was found")
	if shared() { // etcd's watch cache begins when all objects can be read
		c.get(widgetsPath).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "failed to read one or more widgets")
	} else {
		c.get(widgetsPath).refused(http.StatusInternalServerError, metav1.StatusReasonStoreReadError, "failed to read one or more widgets")
	}
	c.delete(widgetsPath+"/lost", nil).want(http.StatusInternalServerError)
	c.delete(widgetsPath+"/lost?ignoreStoreReadErrorWithClusterBreakingPotential=true", nil).want(http.StatusOK)
	testwait.Until(t, "lists are answered", func() bool { return !shared() || c.get(widgetsPath).code == http.StatusOK })
	if got := c.get(widgetsPath).want(http.StatusOK).names(); len(got) != 1 || got[0] != "readable" {
		t.Errorf("listed %v", got)
	}
}

// storageVerb runs one of the verbs below storage in a process of its own, and returns the output.
func storageVerb(t *testing.T, options annex.Options, args ...string) (string, error) {
	t.Helper()
	options = placed(t, options)
	p := prepare(t)
	args = append([]string{p.Path, "storage"}, args...)
	p.Args = append(
		args,
		"--data-dir",
		options.DataDir,
		"--storage",
		storageName(options),
		"--encryption-provider-config",
		options.EncryptionConfigFile,
	)
	if storageName(options) == etcd.Name {
		endpoints, prefix := etcdOf(options)
		p.Args = append(p.Args, "--etcd-servers", endpoints, "--etcd-prefix", prefix)
	}
	out, err := p.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &p.log)
	}
	return string(out), err
}

func TestEncryption_keyRotation(t *testing.T) {
	const count = 20
	first, second := keyed("aescbc", "key1", secret1), keyed("aesgcm", "key2", secret2)
	for _, how := range []string{"with the server stopped", "while it runs", "by automatic reload"} {
		t.Run(how, func(t *testing.T) {
			file := encryptionConfig(t, first)
			options := annex.Options{
				DataDir:                t.TempDir(),
				Storage:                embedded.Dir(""),
				EncryptionConfigFile:   file,
				EncryptionConfigReload: how == "by automatic reload",
			}
			before := map[string]*v1.Widget{}
			begin := ""
			fill := func(c *client) {
				begin = c.get(widgetsPath).str("metadata", "resourceVersion")
				for i := range count {
					w := c.create(fmt.Sprint("w", i), spec(fields{"size": "small", "options": fields{"note": "hush"}}))
					before[w.Name] = w
				}
				c.delete(widgetsPath+"/w0", nil).want(http.StatusOK)
				delete(before, "w0")
			}
			rewrite := func(t *testing.T) {
				out, err := storageVerb(t, options, "rewrite")
				want := fmt.Sprintf("widgets.shop.example.com: %d checked, %d rewritten, 0 already current; stored now: %d with aesgcm key2; as "+
					"%d v1, application/json\n", count-1, count-1, count-1, count-1)
				if err != nil || !strings.Contains(out, want) {
					t.Fatalf("storage rewrite: %v\n%s", err, out)
				}
				if out, err = storageVerb(t, options, "rewrite", "--resource", "widgets.shop.example.com"); err != nil ||
					out != fmt.Sprintf("widgets.shop.example.com: %d checked, 0 rewritten, %d already current; stored now: %d with aesgcm key2; as "+
						"%d v1, application/json\n", count-1, count-1, count-1, count-1) {
					t.Fatalf("storage rewrite again: %v\n%s", err, out)
				}
			}

			t.Run("rotate", func(t *testing.T) {
				c := startWith(t, shop(), options)
				fill(c)
				writeEncryptionConfig(t, file, second, first)
				if options.EncryptionConfigReload {
					untilEncryptedWith(t, c, "key2")
					rewrite(t)
				}
			})
			switch how {
			case "while it runs":
				t.Run("rewrite", func(t *testing.T) {
					startWith(t, shop(), options)
					rewrite(t)
				})
			case "with the server stopped":
				rewrite(t)
			}
			for name, value := range storedWidgets(t, options) {
				if before[name] != nil && !strings.HasPrefix(value, "k8s:enc:aesgcm:v1:key2:") {
					t.Errorf("%s is stored as %.40q", name, value)
				}
			}

			writeEncryptionConfig(t, file, second)
			c := startWith(t, shop(), options)
			for _, item := range c.get(widgetsPath).want(http.StatusOK).items() {
				got := &v1.Widget{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item, got); err != nil {
					t.Fatal(err)
				}
				want := before[got.Name]
				delete(before, got.Name)
				if want == nil || got.ResourceVersion == want.ResourceVersion {
					t.Errorf("%s has the version %s", got.Name, got.ResourceVersion)
					continue
				}
				got.ResourceVersion = want.ResourceVersion
				got.TypeMeta = want.TypeMeta
				if !equality.Semantic.DeepEqual(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
			if len(before) > 0 {
				t.Errorf("%d widgets are gone", len(before))
			}
			checkLostHistory(t, c, begin)
			if out, err := storageVerb(t, options, "rewrite", "--compact"); err != nil || !strings.Contains(out, "compacted to revision") {
				t.Errorf("storage rewrite --compact: %v\n%s", err, out)
			}
			c.get(widgetsPath+"?resourceVersionMatch=Exact&resourceVersion="+begin).refused(http.StatusGone, metav1.StatusReasonExpired)
		})
	}
}

// checkLostHistory checks the history before a rewrite, when its key is gone.
func checkLostHistory(t *testing.T, c *client, begin string) {
	t.Helper()
	if storageName(placed(t, annex.Options{})) == etcd.Name { // the watch cache begins after the rewrite
		return
	}
	old := c.watch(widgetsPath + "?watch=1&resourceVersion=" + begin).next()
	if message := text(
		old.Object,
		"message",
	); old.Type != "ERROR" || text(old.Object, "code") != "500" ||
		!strings.Contains(message, "no matching") {
		t.Errorf("a watch from before the key was lost begins with %v", old)
	}
	now := c.get(widgetsPath).str("metadata", "resourceVersion")
	fresh := c.watch(widgetsPath + "?watch=1&resourceVersion=" + now)
	c.create("after", spec(fields{"size": "small"}))
	fresh.want("ADDED after")
}

// untilEncryptedWith waits until the server has read a key again.
func untilEncryptedWith(t *testing.T, c *client, key string) {
	t.Helper()
	testwait.Until(t, "the server takes up "+key, func() bool {
		return strings.Contains(string(c.get("/metrics").raw), `annex_storage_encryption_info{group="shop.example.com",key="`+key+`"`)
	})
}

// An update without a change rewrites an object that is stored with an old key.
func TestEncryption_noopUpdate_usesNewKey(t *testing.T) {
	first, second := keyed("secretbox", "key1", secret1), keyed("secretbox", "key2", secret2)
	file := encryptionConfig(t, first)
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir(""), EncryptionConfigFile: file}
	t.Run("before", func(t *testing.T) { startWith(t, shop(), options).create("w", spec(fields{"size": "small"})) })
	writeEncryptionConfig(t, file, second, first)
	t.Run("after", func(t *testing.T) {
		c := startWith(t, shop(), options)
		old := c.widget("w")
		rewritten := c.put(widgetsPath+"/w", old).want(http.StatusOK).widget()
		if rewritten.ResourceVersion == old.ResourceVersion {
			t.Error("nothing was written")
		}
		if again := c.put(widgetsPath+"/w", rewritten).want(http.StatusOK).widget(); again.ResourceVersion != rewritten.ResourceVersion {
			t.Error("it was written twice")
		}
	})
	if value := storedWidgets(t, options)["w"]; !strings.HasPrefix(value, "k8s:enc:secretbox:v1:key2:") {
		t.Errorf("it is stored as %.40q", value)
	}
}

func TestRewrite_newStoredVersion(t *testing.T) {
	inPlainText(t)
	stored := func(version string) annex.Server {
		return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			widgets().StoredAs(version),
		}}}}
	}
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir("")}
	before := []*v1.Widget{}
	t.Run("before", func(t *testing.T) {
		c := startWith(t, stored("v1beta1"), options)
		for i := range 5 {
			before = append(before, c.create(fmt.Sprint("w", i), spec(fields{"size": "small"})))
		}
	})
	for name, value := range storedWidgets(t, options) {
		if !strings.Contains(value, `"apiVersion":"shop.example.com/v1beta1"`) {
			t.Errorf("%s is stored as %s", name, value)
		}
	}
	t.Run("rewrite", func(t *testing.T) {
		c := startWith(t, stored("v1"), options)
		if out, err := storageVerb(
			t,
			options,
			"rewrite",
			"--compact",
		); err != nil ||
			!strings.Contains(out, "widgets.shop.example.com: 5 checked, 5 rewritten, 0 already current") {
			t.Errorf("%v\n%s", err, out)
		}
		for _, old := range before {
			now := c.widget(old.Name)
			if now.ResourceVersion == old.ResourceVersion {
				t.Errorf("%s was not written", now.Name)
			}
			old.ResourceVersion = now.ResourceVersion
			if !equality.Semantic.DeepEqual(old, now) {
				t.Errorf("got %v, want %v", now, old)
			}
		}
	})
	for name, value := range storedWidgets(t, options) {
		if !strings.Contains(value, `"apiVersion":"shop.example.com/v1"`) {
			t.Errorf("%s is stored as %s", name, value)
		}
	}
}

func TestEncryption_kmsKeyRotation(t *testing.T) {
	plugin := kmstest.New(t, "one")
	plugin.Start(t)
	options := annex.Options{
		DataDir: t.TempDir(), Storage: embedded.Dir(""),
		EncryptionConfigFile: encryptionConfig(t, fmt.Sprintf("{kms: {apiVersion: v2, name: vault, endpoint: %q}}", plugin.Endpoint())),
	}
	t.Run("before", func(t *testing.T) {
		c := startWith(t, shop(), options)
		c.create("w", spec(fields{"size": "small"}))
		if text := string(c.get("/readyz?verbose").want(http.StatusOK).raw); !strings.Contains(text, "[+]kms-providers ok") {
			t.Errorf("ready: %s", text)
		}
	})
	plugin.Rotate(t, "two")
	t.Run("rewrite", func(t *testing.T) {
		startWith(t, shop(), options)
		if out, err := storageVerb(
			t,
			options,
			"rewrite",
		); err != nil ||
			!strings.Contains(out, "widgets.shop.example.com: 1 checked, 1 rewritten") {
			t.Errorf("storage rewrite: %v\n%s", err, out)
		}
	})
	plugin.Forget("one")
	t.Run("after", func(t *testing.T) { startWith(t, shop(), options).widget("w") })

	plugin.Rotate(t, "three")
	plugin.Forget("two")
	_, err := annex.New(t.Context(), shop(), placed(t, options))
	if err == nil ||
		!strings.Contains(err.Error(), `is stored with provider kms v2 "vault", but the provider or key of this name in the file does not decrypt it`) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a plugin that has lost its key: %v", err)
	}
}
