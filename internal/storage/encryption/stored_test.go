package encryption

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/storage/encryption/kmstest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// fakeStored holds values like a backend.
type fakeStored struct {
	values map[schema.GroupResource][]store.Value
}

func (s *fakeStored) StoredResources() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "namespaces"}, widgets}
}

func (s *fakeStored) StoredValues(_ context.Context, resource schema.GroupResource) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for _, v := range s.values[resource] {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// add stores values encrypted by a configuration, in plain text if it is nil.
func (s *fakeStored) add(t testing.TB, e *Encryption, resource schema.GroupResource, names ...string) {
	t.Helper()
	if s.values == nil {
		s.values = map[schema.GroupResource][]store.Value{}
	}
	for _, name := range names {
		key := "/" + resource.Resource + "/" + name
		v := store.Value{Key: key, Data: []byte(`{"kind":"Widget"}`), Context: value.DefaultContext(key)}
		if transformer := e.TransformerForResource(resource); transformer != nil {
			var err error
			if v.Data, err = transformer.TransformToStorage(t.Context(), v.Data, v.Context); err != nil {
				t.Fatal(err)
			}
		}
		s.values[resource] = append(s.values[resource], v)
	}
}

func open(t testing.TB, content string) *Encryption {
	t.Helper()
	return openFile(t, Options{File: write(t, content)})
}

func openFile(t testing.TB, options Options) *Encryption {
	t.Helper()
	e, err := Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// providers returns every kind of provider, each as a rule with one key, with another key of the same name, and with
// both keys.
func providers(t testing.TB) map[string]struct{ one, other, both string } {
	all := map[string]struct{ one, other, both string }{}
	for _, name := range []string{"aescbc", "aesgcm", "secretbox"} {
		all[name] = struct{ one, other, both string }{
			one:   block(keys(name, "key1", secret1)),
			other: block(keys(name, "key1", secret2)),
			both:  block(keys(name, "key2", secret2, "key1", secret1)),
		}
	}
	one, other := kmstest.New(t, "one"), kmstest.New(t, "one")
	one.Start(t)
	other.Start(t)
	kms := func(name string, p *kmstest.Plugin) string {
		return fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: %q}}", name, p.Endpoint())
	}
	all["kms"] = struct{ one, other, both string }{
		one:   kms("key1", one),
		other: kms("key1", other),
		both:  kms("key2", other) + ", " + kms("key1", one),
	}
	return all
}

func TestCheck_storedValues(t *testing.T) {
	for name, provider := range providers(t) {
		t.Run(name, func(t *testing.T) {
			encrypted, inPlainText := &fakeStored{}, &fakeStored{}
			encrypted.add(t, open(t, encrypting("widgets.example.com", provider.one)), widgets, "a", "b", "c", "d")
			inPlainText.add(t, nil, widgets, "a")

			for what, test := range map[string]struct {
				content string
				stored  *fakeStored
				want    string // empty for no error
			}{
				"same key":    {encrypting("widgets.example.com", provider.one), encrypted, ""},
				"by group":    {encrypting("'*.example.com'", provider.one), encrypted, ""},
				"all":         {encrypting("'*.*'", provider.one), encrypted, ""},
				"second key":  {encrypting("widgets.example.com", provider.both), encrypted, ""},
				"first plain": {encrypting("widgets.example.com", plain, provider.one), encrypted, ""},
				"plain last":  {encrypting("widgets.example.com", provider.one, plain), inPlainText, ""},
				"only plain":  {encrypting("widgets.example.com", plain), encrypted, "/widgets/a is stored with provider " + name},
				"another secret": {encrypting("widgets.example.com", provider.other), encrypted, "restore the key with which it was " +
					"encrypted"},
				"no rule": {encrypting("'*.'", provider.one), encrypted, "the file has no rule for widgets.example.com"},
				"plain text": {encrypting("widgets.example.com", provider.one), inPlainText, "/widgets/a is stored in plain text, which no " +
					"provider reads: add identity: {}"},
				"another provider": {encrypting("widgets.example.com", block(keys("aesgcm", "other", secret2))), encrypted, `"key1", which the ` +
					`file does not have`},
				"plain, no rule":     {encrypting("'*.'", provider.one), inPlainText, ""},
				"nothing stored":     {encrypting("widgets.example.com", provider.other), &fakeStored{}, ""},
				"first plain, other": {encrypting("widgets.example.com", plain, provider.other), encrypted, "does not decrypt it"},
			} {
				t.Run(what, func(t *testing.T) {
					e := open(t, test.content)
					err := e.Check(t.Context(), test.stored)
					if test.want == "" {
						if err != nil {
							t.Error(err)
						}
						return
					}
					if err == nil || !errors.Is(err, ErrUnreadable) {
						t.Fatalf("got %v", err)
					}
					text := err.Error()
					if !strings.Contains(text, test.want) || !strings.Contains(text, e.options.File) || !strings.Contains(text, "widgets.example.com") {
						t.Errorf("got  %s\nwant %s", text, test.want)
					}
					if strings.Contains(text, "\n") || strings.Contains(text, secret1[:12]) {
						t.Errorf("got %q", text)
					}
				})
			}

			err := (*Encryption)(nil).Check(t.Context(), encrypted)
			if err == nil || !strings.Contains(err.Error(), "Options.EncryptionConfigFile") || !errors.Is(err, ErrUnreadable) {
				t.Errorf("without a configuration: %v", err)
			}
			if err := (*Encryption)(nil).Check(t.Context(), inPlainText); err != nil {
				t.Errorf("plain text without a configuration: %v", err)
			}
		})
	}
}

// A CBC provider decrypts some values with a wrong key: it checks only the padding, which one in 256 values has by
// chance.
func TestCheck_wrongKey_withoutAuthentication(t *testing.T) {
	e := open(t, encrypting("widgets.example.com", block(keys("aescbc", "key1", secret1))))
	other := open(t, encrypting("widgets.example.com", block(keys("aescbc", "key1", secret2))))
	accepted := 0
	for i := range 5000 {
		stored := &fakeStored{}
		stored.add(t, e, widgets, fmt.Sprint(i))
		v := stored.values[widgets][0]
		if _, _, err := other.TransformerForResource(widgets).TransformFromStorage(t.Context(), v.Data, v.Context); err == nil {
			accepted++
		}
		if err := other.Check(t.Context(), stored); err == nil {
			t.Errorf("value %d passes for readable", i)
		}
	}
	if accepted == 0 {
		t.Error("the provider notices every wrong key: this test has nothing to show")
	}
}

func TestCheck_oneDamagedValue_passes(t *testing.T) {
	e := open(t, encrypting("widgets.example.com", block(keys("secretbox", "key1", secret1))))
	stored := &fakeStored{}
	stored.add(t, e, widgets, "a", "b")
	damaged := slices.Clone(stored.values[widgets][0].Data)
	damaged[len(damaged)-1] ^= 1
	stored.values[widgets][0].Data = damaged
	if err := e.Check(t.Context(), stored); err != nil {
		t.Error(err)
	}
}

func TestKey_firstProvider(t *testing.T) {
	e := open(t, encrypting("widgets.example.com", block(keys("aescbc", "key2", secret2, "key1", secret1)), plain))
	if got := e.Key(widgets); got != (Key{"aescbc", "key2"}) {
		t.Errorf("got %v", got)
	}
	if got := e.Key(schema.GroupResource{Resource: "namespaces"}); got != (Key{}) {
		t.Errorf("got %v", got)
	}
	if got := (*Encryption)(nil).Key(widgets); got != (Key{}) {
		t.Errorf("got %v", got)
	}
}

// replace replaces a configuration file by renaming, as an editor does.
func replace(t testing.TB, file, content string) {
	t.Helper()
	next := file + ".next"
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

func TestRun_changedFile_isReloaded(t *testing.T) {
	old := encrypting("widgets.example.com", block(keys("aescbc", "key1", secret1)))
	both := encrypting("widgets.example.com", block(keys("aescbc", "key2", secret2, "key1", secret1)))
	file := write(t, old)
	e := openFile(t, Options{File: file, Reload: true})
	stored := &fakeStored{}
	stored.add(t, e, widgets, "a")
	if err := e.Check(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	transformer := e.TransformerForResource(widgets)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	defer func() { cancel(); <-done }()

	v := stored.values[widgets][0]
	replace(t, file, both)
	testwait.Until(t, "a value of the old key is stale", func() bool {
		_, stale, err := transformer.TransformFromStorage(ctx, v.Data, v.Context)
		return err == nil && stale
	})
	testwait.Until(t, "values are said to be written with the new key", func() bool {
		return e.Key(widgets) == Key{"aescbc", "key2"}
	})
}

func TestReload_unusableFile_changesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a file would be read again")
	}
	t.Parallel() // with a plugin, k8s.io/apiserver takes three seconds
	good := encrypting("widgets.example.com", block(keys("aescbc", "key1", secret1)))
	for name, content := range map[string]string{
		"a mistake":                encrypting("widgets.example.com", block(keys("aescbc", "key1", "c2hvcnQ="))),
		"stored values unreadable": encrypting("widgets.example.com", block(keys("aescbc", "key2", secret2))),
		"no plugin": encrypting("widgets.example.com", "{kms: {apiVersion: v2, name: vault, endpoint: "+
			"'unix:///nowhere/kms.sock'}}", block(keys("aescbc", "key1", secret1))),
		"empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, good)
			e := openFile(t, Options{File: file, Reload: true, Patience: time.Millisecond})
			stored := &fakeStored{}
			stored.add(t, e, widgets, "a")
			if err := e.Check(t.Context(), stored); err != nil {
				t.Fatal(err)
			}
			replace(t, file, content)
			replaced, err := e.reload(t.Context())
			if replaced || err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, %v", replaced, err)
			}
			if err := e.Check(t.Context(), stored); err != nil {
				t.Errorf("what was in force is not any more: %v", err)
			}
			replace(t, file, good)
			if replaced, err := e.reload(t.Context()); replaced || err != nil {
				t.Errorf("back again: %v, %v", replaced, err)
			}
		})
	}
}
