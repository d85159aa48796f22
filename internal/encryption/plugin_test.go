package encryption

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"

	"github.com/annexapi/annex/internal/encryption/kmstest"
)

// Upstream asks a plugin that is well only every twenty seconds.
func TestAPluginMayRotateItsKeyAndStop(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as upstream trusts a plugin")
	}
	t.Parallel()
	plugin := kmstest.New(t, "one")
	plugin.Start(t)
	e := open(t, encrypting("widgets.example.com", fmt.Sprintf("{kms: {apiVersion: v2, name: rotating, endpoint: %q}}", plugin.Endpoint())))
	checks := e.HealthChecks()
	if len(checks) != 1 || checks[0].Name() != "kms-providers" {
		t.Fatalf("got %v", checks)
	}
	health := func() error { return checks[0].Check(httptest.NewRequest("GET", "/readyz", nil)) }
	if err := health(); err != nil {
		t.Fatal(err)
	}
	stored := &fakeStored{}
	stored.add(t, e, widgets, "a")
	v := stored.values[widgets][0]
	transformer := e.TransformerForResource(widgets)
	isStale := func() bool {
		_, stale, err := transformer.TransformFromStorage(t.Context(), v.Data, v.Context)
		if err != nil {
			t.Fatal(err)
		}
		return stale
	}
	if isStale() {
		t.Error("a value of the current key is stale")
	}

	plugin.Rotate(t, "two")
	eventually(t, "a value of the plugin's old key is stale", func() bool { return health() == nil && isStale() })
	stored.add(t, e, widgets, "b")
	plugin.Forget("one")
	if isStale() != true {
		t.Error("a key that has been read with is needed again")
	}

	plugin.Stop(t)
	eventually(t, "without the plugin the server is not ready", func() bool { return health() != nil })
	if text := health().Error(); strings.Contains(text, plugin.Endpoint()) {
		t.Errorf("everybody is told of the socket: %s", text)
	}
	if err := e.Check(t.Context(), stored); err != nil {
		t.Errorf("what was read cannot be read without the plugin: %v", err)
	}
	if _, err := transformer.TransformToStorage(t.Context(), []byte("{}"), v.Context); err != nil {
		t.Errorf("a write soon after the plugin has stopped: %v", err)
	}
	defer kmsv2.SetNowFuncForTests("rotating", func() time.Time { return time.Now().Add(4 * time.Minute) })()
	if _, err := transformer.TransformToStorage(t.Context(), []byte("{}"), v.Context); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a write long after the plugin has stopped: %v", err)
	}
	if isStale() != true {
		t.Error("reading goes on")
	}

	plugin.Start(t)
	eventually(t, "with the plugin the server is ready", func() bool { return health() == nil })
	if _, err := transformer.TransformToStorage(t.Context(), []byte("{}"), v.Context); err != nil {
		t.Errorf("a write after the plugin has come back: %v", err)
	}
}
