package encryption

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"

// The secrets of the tests. No error may contain them.
const (
	secret1 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	secret2 = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
)

// write writes a configuration file.
func write(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// encrypting returns a configuration file with one rule.
func encrypting(resources string, providers ...string) string {
	return fmt.Sprintf("%sresources:\n- resources: [%s]\n  providers: [%s]\n", header, resources, strings.Join(providers, ", "))
}

// keys returns a provider with keys, given as pairs of a name and a secret.
func keys(provider string, pairs ...string) string {
	var all []string
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, fmt.Sprintf("{name: %s, secret: %q}", pairs[i], pairs[i+1]))
	}
	return fmt.Sprintf("%s: {keys: [%s]}", provider, strings.Join(all, ", "))
}

func block(provider string) string { return "{" + provider + "}" }

const plain = "{identity: {}}"

func TestOpen_mistake_isOneLine(t *testing.T) {
	good := block(keys("aescbc", "key1", secret1))
	for name, test := range map[string]struct{ content, want string }{
		"empty":   {"\n", "it is empty"},
		"no YAML": {"a: b: c", "mapping values"},
		"no kind": {strings.ReplaceAll(encrypting("widgets.example.com", good), "kind: EncryptionConfiguration\n", ""), `kind ""`},
		"another kind": {strings.ReplaceAll(encrypting("widgets.example.com", good), "kind: Encryption", "kind: Admission"),
			`kind "AdmissionConfiguration": must be apiserver.config.k8s.io/v1 and EncryptionConfiguration`},
		"unknown field": {encrypting("widgets.example.com", "{aescbc: {key: [{name: key1, secret: "+secret1+"}]}}"), `unknown field ` +
			`"resources[0].providers[0].aescbc.key"`},
		"no resources": {header + "resources: []\n", "resources: at least one resources is required"},
		"no providers": {encrypting("widgets.example.com"), "resources[0].providers: at least one resources[0].providers is required (of " +
			"widgets.example.com)"},
		"two providers in one": {encrypting("widgets.example.com", "{"+keys("aescbc", "key1", secret1)+", identity: {}}"),
			"resources[0].providers[0]: more than one provider"},
		"short key": {encrypting("widgets.example.com", block(keys("aescbc", "key1", "c2hvcnQ="))),
			"resources[0].providers[0].aescbc.keys[0].secret: secret is not of the expected length, got 5, expected one of [16 24 32]; make one with"},
		"no base64": {encrypting("widgets.example.com", block(keys("secretbox", "key1", "!"+secret1))),
			"resources[0].providers[0].secretbox.keys[0].secret: secrets must be base64 encoded; make one"},
		"no secret": {encrypting("widgets.example.com", "{aesgcm: {keys: [{name: key1}]}}"),
			"resources[0].providers[0].aesgcm.keys[0].secret: secret is a mandatory field"},
		"a number": {encrypting("widgets.example.com", "{aesgcm: {keys: [{name: key1, secret: 12345}]}}"), "cannot unmarshal number"},
		"no socket": {encrypting("widgets.example.com", "{kms: {apiVersion: v2, name: vault, endpoint: 'https://kms'}}"), `unsupported ` +
			`scheme "https" for KMS provider`},
		"KMS v1": {encrypting("widgets.example.com", "{kms: {apiVersion: v1, name: vault, endpoint: 'unix:///kms.sock'}}"),
			"KMSv1 is deprecated"},
		"masked": {encrypting("'*.*'", good) + "- resources: [widgets.example.com]\n  providers: [" + good + "]\n",
			`resource "widgets.example.com" is masked by earlier rule "*.*"`},
		"any group":     {encrypting("widgets.*", good), "encrypting the same resource across groups is not supported (of widgets.*)"},
		"only a string": {"secret: " + secret1, `apiVersion "" and kind ""`},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, test.content)
			_, err := Open(t.Context(), Options{File: file})
			if err == nil {
				t.Fatal("it was accepted")
			}
			text := err.Error()
			if !strings.HasPrefix(text, "encryption configuration "+file+": ") || !strings.Contains(text, test.want) {
				t.Errorf("got  %s\nwant %s", text, test.want)
			}
			if strings.Contains(text, "\n") {
				t.Errorf("more than one line: %q", text)
			}
			if strings.Contains(text, secret1[:12]) || strings.Contains(text, "c2hvcnQ") || strings.Contains(text, "12345") {
				t.Errorf("the secret is told: %s", text)
			}
		})
	}
}

func TestOpen_fileMissingOrReadable(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if _, err := Open(
		t.Context(),
		Options{File: missing},
	); err == nil ||
		err.Error() != "encryption configuration "+missing+": no such file or directory" {
		t.Errorf("missing: %v", err)
	}
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: false, 0o644: true, 0o602: true} {
		file := write(t, encrypting("widgets.example.com", block(keys("aescbc", "key1", secret1))))
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		e, err := Open(t.Context(), Options{File: file})
		e.Close()
		if (err != nil) != refused {
			t.Errorf("mode %o: %v", mode, err)
		}
		if refused && !strings.Contains(err.Error(), "chmod it to 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	// A file without keys has no secrets.
	file := write(t, encrypting("widgets.example.com", plain))
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), Options{File: file})
	if err != nil {
		t.Error(err)
	}
	e.Close()
}

func TestOpen_unreachablePlugin_isNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a plugin that does not answer")
	}
	t.Parallel() // k8s.io/apiserver takes three seconds
	file := write(
		t,
		encrypting("widgets.example.com, '*.shop.example.com'", "{kms: {apiVersion: v2, name: vault, endpoint: 'unix:///nowhere/kms.sock'}}"),
	)
	_, err := Open(t.Context(), Options{File: file, Patience: time.Millisecond})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{file, `provider kms "vault" of widgets.example.com, *.shop.example.com at unix:///nowhere/kms.sock is ` +
		`not well`, "start the plugin, or correct the endpoint; nothing was changed"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

func TestOpen_reloadWithoutFile(t *testing.T) {
	if _, err := Open(t.Context(), Options{Reload: true}); err == nil {
		t.Error("it was accepted")
	}
}
