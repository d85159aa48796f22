package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/store/embedded"
)

// runStored runs a control plane over a directory until it is stopped.
func runStored(t *testing.T, dir, encryption string) (c clients, stop func()) {
	t.Helper()
	instance, err := annex.New(
		t.Context(),
		cluster(),
		annex.Options{Storage: embedded.Dir(""), DataDir: dir, Listen: "127.0.0.1:0", EncryptionConfigFile: encryption},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	<-ready
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return clientsOf(config), stop
}

// storageVerb runs a verb of storage, and returns its output or its error. Its warnings, about a nearly full disk
// for example, depend on the machine.
func storageVerb(t *testing.T, dir, encryption string, args ...string) (string, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	args = append(append([]string{"storage"}, args...), "--data-dir", dir, "--encryption-provider-config", encryption)
	code := program.Run(t.Context(), cluster(), args, &out, &errOut)
	if code != 0 {
		return errOut.String(), code
	}
	return out.String(), code
}

// keyed writes a configuration that encrypts all resources with the first of the keys.
func keyed(t *testing.T, keys ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	var providers []string
	for _, key := range keys {
		providers = append(providers, fmt.Sprintf("{secretbox: {keys: [{name: %s, secret: %s}]}}", key, map[string]string{
			"one": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "two": "YWJjZGVmZ2hpamFiY2RlZmdoaWphYmNkZWZnaGlqYWI=",
		}[key]))
	}
	text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- {resources: ['*.*'], "+
		"providers: [%s]}\n", strings.Join(providers, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// After storage rewrite, neither a rotated key nor the former stored version of custom resources is needed any
// more.
func TestStorageRewrite_customResources(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"with the server stopped", "while it runs"} {
		t.Run(how, func(t *testing.T) {
			const objects = 20
			dir := t.TempDir()
			c, stop := runStored(t, dir, keyed(t, "one"))
			c.define(t, widgets(sizeAndColor))
			for i := range objects {
				if _, err := c.widgets.Create(
					t.Context(),
					widget(fmt.Sprint("w", i), map[string]any{"size": int64(i)}),
					metav1.CreateOptions{},
				); err != nil {
					t.Fatal(err)
				}
			}
			c.storeAsV2(t)
			before, err := c.widgets.Get(t.Context(), "w7", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			stop()
			both := keyed(t, "two", "one")
			if how == "while it runs" {
				_, stop = runStored(t, dir, both)
			}
			if out, code := storageVerb(
				t,
				dir,
				both,
				"rewrite",
				"--resource",
				"gadgets.stable.example.com",
			); code == 0 ||
				!strings.Contains(out, "this server stores no gadgets.stable.example.com") {
				t.Errorf("of a resource that is not there: %d %s", code, out)
			}
			out, code := storageVerb(t, dir, both, "rewrite")
			for _, want := range []string{
				"widgets.stable.example.com: 20 checked, 20 rewritten, 0 already current; stored now: 20 with secretbox two; as 20 v2, " +
					"application/json\n",
				"customresourcedefinitions.apiextensions.k8s.io: 1 checked, 1 rewritten, 0 already current; stored now: 1 with secretbox two\n",
			} {
				if code != 0 || !strings.Contains(out, want) {
					t.Errorf("code %d, without %q:\n%s", code, want, out)
				}
			}
			if out, code := storageVerb(
				t,
				dir,
				both,
				"rewrite",
				"--resource",
				"widgets.stable.example.com",
			); code != 0 ||
				!strings.HasPrefix(out, "widgets.stable.example.com: 20 checked, 0 rewritten, 20 already current;") {
				t.Errorf("the second time: %d %s", code, out)
			}
			stop()
			c, stop = runStored(t, dir, keyed(t, "two"))
			testwait.NoError(t, "widgets are served", func(ctx context.Context) error {
				_, err := c.widgets.Get(ctx, "w7", metav1.GetOptions{})
				return err
			})
			list, err := c.widgets.List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != objects {
				t.Errorf("%d objects, %v", len(list.Items), err)
			}
			after, err := c.widgets.Get(t.Context(), "w7", metav1.GetOptions{})
			if err != nil || after.GetResourceVersion() == before.GetResourceVersion() {
				t.Fatalf("an object is %v, %v", after, err)
			}
			after.SetResourceVersion(before.GetResourceVersion())
			if fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("an object is %v, and was %v", after, before)
			}
			stop()
		})
	}
}
