package encryption

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"

	"github.com/annexapi/annex/internal/storage/encryption/kmstest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
)

// withPlugin encrypts with a plugin. health returns the plugin's health. k8s.io/apiserver calls a healthy plugin only
// every twenty seconds, and no fake clock shortens this: tests that wait for it run in parallel.
func withPlugin(t *testing.T, name string) (plugin *kmstest.Plugin, e *Encryption, health func() error) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes as long as upstream trusts a plugin")
	}
	t.Parallel()
	plugin = kmstest.New(t, "one")
	plugin.Start(t)
	e = open(t, encrypting("widgets.example.com", fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: %q}}", name, plugin.Endpoint())))
	checks := e.HealthChecks()
	if len(checks) != 1 || checks[0].Name() != "kms-providers" {
		t.Fatalf("got %v", checks)
	}
	health = func() error { return checks[0].Check(httptest.NewRequest("GET", "/readyz", nil)) }
	if err := health(); err != nil {
		t.Fatal(err)
	}
	return plugin, e, health
}

// staleness reports whether a value must be rewritten. The value must be readable.
func staleness(t *testing.T, e *Encryption, v store.Value) bool {
	t.Helper()
	_, stale, err := e.TransformerForResource(widgets).TransformFromStorage(t.Context(), v.Data, v.Context)
	if err != nil {
		t.Fatal(err)
	}
	return stale
}

func TestPlugin_rotatesKey(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a key is rotated")
	}
	plugin, e, health := withPlugin(t, "rotating")
	stored := &fakeStored{}
	stored.add(t, e, widgets, "a")
	old := stored.values[widgets][0]
	if staleness(t, e, old) {
		t.Error("a value of the current key is stale")
	}

	plugin.Rotate(t, "two")
	testwait.Until(t, "a value of the plugin's old key is stale", func() bool { return health() == nil && staleness(t, e, old) })
	stored.add(t, e, widgets, "b")
	if staleness(t, e, stored.values[widgets][1]) {
		t.Error("a value of the new key is stale")
	}
	plugin.Forget("one")
	if !staleness(t, e, old) {
		t.Error("a value of the old key is current again")
	}
	plugin.Stop(t)
	if err := e.Check(t.Context(), stored); err != nil {
		t.Errorf("what was read with either key cannot be read without the plugin: %v", err)
	}
}

func TestPlugin_stopsAndRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a plugin counts as stopped")
	}
	plugin, e, health := withPlugin(t, "stopping")
	stored := &fakeStored{}
	stored.add(t, e, widgets, "a")
	v := stored.values[widgets][0]
	write := func() error {
		_, err := e.TransformerForResource(widgets).TransformToStorage(t.Context(), []byte("{}"), v.Context)
		return err
	}

	plugin.Stop(t)
	testwait.Until(t, "without the plugin the server is not ready", func() bool { return health() != nil })
	if text := health().Error(); strings.Contains(text, plugin.Endpoint()) {
		t.Errorf("anonymous callers are told of the socket: %s", text)
	}
	if err := e.Check(t.Context(), stored); err != nil {
		t.Errorf("what was read cannot be read without the plugin: %v", err)
	}
	if err := write(); err != nil {
		t.Errorf("a write soon after the plugin has stopped: %v", err)
	}
	defer kmsv2.SetNowFuncForTests("stopping", func() time.Time { return time.Now().Add(4 * time.Minute) })()
	if err := write(); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a write long after the plugin has stopped: %v", err)
	}
	if staleness(t, e, v) {
		t.Error("a value has become stale without a new key")
	}

	plugin.Start(t)
	testwait.Until(t, "with the plugin the server is ready", func() bool { return health() == nil })
	if err := write(); err != nil {
		t.Errorf("a write after the plugin has come back: %v", err)
	}
}
