package annex_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/encryption/kmstest"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// Secrets of the tests' keys.
const (
	secret1 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	secret2 = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
)

// encryptionConfig writes a file by which all resources are encrypted with the first
// of some providers.
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

// encryptionRule is a file with one rule.
func encryptionRule(resource string, providers ...string) string {
	return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['%s']\n  providers: [%s]\n", resource, strings.Join(providers, ", "))
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

// keyed is a provider with keys, given as names and secrets.
func keyed(provider string, pairs ...string) string {
	var keys []string
	for i := 0; i < len(pairs); i += 2 {
		keys = append(keys, fmt.Sprintf("{name: %s, secret: %q}", pairs[i], pairs[i+1]))
	}
	return fmt.Sprintf("{%s: {keys: [%s]}}", provider, strings.Join(keys, ", "))
}

const unencrypted = "{identity: {}}"

// records are the records of the journal in a data directory that no server uses.
func records(t *testing.T, dataDir string) []journal.Record {
	t.Helper()
	j, err := embedded.Open(filepath.Join(dataDir, "storage"), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	var all []journal.Record
	if _, err := j.Replay(t.Context(), func(r journal.Record) error { all = append(all, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEveryProviderEncryptsWhatIsStored(t *testing.T) {
	plugin := kmstest.New(t, "one")
	plugin.Start(t)
	for name, provider := range map[string]string{
		"aescbc":    keyed("aescbc", "key1", secret1),
		"aesgcm":    keyed("aesgcm", "key1", secret1),
		"secretbox": keyed("secretbox", "key1", secret1),
		"kms":       fmt.Sprintf("{kms: {apiVersion: v2, name: key1, endpoint: %q}}", plugin.Endpoint()),
		"identity":  unencrypted,
	} {
		for _, storage := range []string{annex.Memory, annex.Embedded} {
			t.Run(name+" "+storage, func(t *testing.T) {
				options := annex.Options{Storage: storage, EncryptionConfigFile: encryptionConfig(t, provider)}
				if storage == annex.Embedded {
					options.DataDir = t.TempDir()
				}
				t.Run("serve", func(t *testing.T) { checkLife(t, startWith(t, shop(), options)) })
				if storage == annex.Memory {
					return
				}
				t.Run("serve again", func(t *testing.T) {
					c := startWith(t, shop(), options)
					if got := c.widget("kept").Spec.Options["note"]; got != "hush" {
						t.Errorf("got the note %q", got)
					}
				})
				for _, r := range records(t, options.DataDir) {
					plain := bytes.HasPrefix(r.Value, []byte("{"))
					prefix := []byte("k8s:enc:" + name + ":")
					if r.Deleted || name == "identity" && plain || bytes.HasPrefix(r.Value, prefix) && !bytes.Contains(r.Value, []byte("hush")) {
						continue
					}
					t.Errorf("%s is stored as %.60q", r.Key, r.Value)
				}
			})
		}
	}
}

// checkLife does to widgets what can be done, and leaves one named kept.
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
	if metrics := string(c.get("/metrics").want(http.StatusOK).raw); !strings.Contains(metrics, `annex_storage_encryption_info{group="shop.example.com",key="`) {
		t.Error("the metrics do not say how widgets are encrypted")
	}
	events.want("ADDED gone", "MODIFIED gone", "MODIFIED gone", "DELETED gone")
	c.get(widgetsPath+"/gone").refused(http.StatusNotFound, metav1.StatusReasonNotFound)
}

func TestAServerRefusesWhatDoesNotFitItsObjects(t *testing.T) {
	options := annex.Options{DataDir: t.TempDir(), Storage: annex.Embedded, EncryptionConfigFile: encryptionConfig(t, keyed("aescbc", "key1", secret1))}
	t.Run("serve", func(t *testing.T) { startWith(t, shop(), options).create("kept", spec(fields{"size": "small"})) })
	before := fmt.Sprint(records(t, options.DataDir))

	for name, test := range map[string]struct {
		providers []string
		want      string
	}{
		"no file":    {nil, "no encryption configuration is given"},
		"wrong key":  {[]string{keyed("aescbc", "key1", secret2)}, "put back the one that it was encrypted with"},
		"other key":  {[]string{keyed("aescbc", "key2", secret2), unencrypted}, `provider aescbc and key "key1", which the file does not have`},
		"plain text": {[]string{unencrypted}, `provider aescbc and key "key1", which the file does not have`},
	} {
		t.Run(name, func(t *testing.T) {
			refused := options
			if refused.EncryptionConfigFile = ""; test.providers != nil {
				refused.EncryptionConfigFile = encryptionConfig(t, test.providers...)
			}
			_, err := annex.New(t.Context(), shop(), refused)
			usage := (*annex.UsageError)(nil)
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
			if after := fmt.Sprint(records(t, options.DataDir)); after != before {
				t.Errorf("the storage was changed from %s to %s", before, after)
			}
		})
	}
	t.Run("serve again", func(t *testing.T) { startWith(t, shop(), options).widget("kept") })
}

// A value without its key is of no use to anybody, but it must be possible to get
// rid of it.
func TestUnreadableObjectsCanBeDeleted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, file, encryptionRule("widgets.shop.example.com", keyed("aesgcm", "lost", secret1)))
	options := annex.Options{DataDir: t.TempDir(), Storage: annex.Embedded, EncryptionConfigFile: file}
	t.Run("serve", func(t *testing.T) {
		startWith(t, shop(), options).create("lost", spec(fields{"size": "small"}))
	})
	writeFile(t, file, encryptionRule("widgets.shop.example.com", keyed("aesgcm", "key", secret2)))
	options.AllowUnreadable = true
	c := startWith(t, shop(), options)
	c.create("readable", spec(fields{"size": "small"}))
	c.widget("readable")
	c.get(widgetsPath+"/lost").refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "/shop.example.com/widgets/default/lost", "no matching key was found")
	if shared() { // etcd's watch cache begins when all objects can be read
		c.get(widgetsPath).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "failed to read one or more widgets")
	} else {
		c.get(widgetsPath).refused(http.StatusInternalServerError, metav1.StatusReasonStoreReadError, "failed to read one or more widgets")
	}
	c.delete(widgetsPath+"/lost", nil).want(http.StatusInternalServerError)
	c.delete(widgetsPath+"/lost?ignoreStoreReadErrorWithClusterBreakingPotential=true", nil).want(http.StatusOK)
	until(t, "lists are answered", func() bool { return !shared() || c.get(widgetsPath).code == http.StatusOK })
	if got := c.get(widgetsPath).want(http.StatusOK).names(); len(got) != 1 || got[0] != "readable" {
		t.Errorf("listed %v", got)
	}
}
