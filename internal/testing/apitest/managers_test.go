package apitest_test

import (
	"strings"
	"testing"
)

// The recorded manager of a request without a field manager is the beginning of its user agent, whichever handler
// answers: a direct one, one of upstream's, or an action.
func TestManagedFields_managerFromUserAgent(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	x := strings.Repeat("x", 126)
	for _, agent := range []string{"annex/1", "größe/1", "a\xffb/1", "a\tb", x + "yz0/1", x + "é", x + "yéz", x + "€z", " / "} {
		manager := func(accept string) string {
			a := c.post(widgetsPath, widget("w", spec(fields{"size": "small"})), "User-Agent", agent, "Accept", accept).want(201)
			return managerOf(t, a)
		}
		upstream := manager(askedOfUpstream)
		c.delete(widgetsPath+"/w", nil).want(200)
		direct := manager(jsonType)
		resized := c.post(widgetsPath+"/w/resizing", fields{"apiVersion": "shop.example.com/v1", "kind": "Resizing", "size": "large"},
			"User-Agent", agent).
			want(201)
		c.delete(widgetsPath+"/w", nil).want(200)
		if direct != upstream || managerOf(t, resized) != upstream {
			t.Errorf("%q: %q of upstream's handlers, %q of ours, %q of an action", agent, upstream, direct, managerOf(t, resized))
		}
	}
}

// managerOf returns the only manager of an object.
func managerOf(t *testing.T, a *answer) string {
	t.Helper()
	var w struct {
		Metadata struct {
			ManagedFields []struct{ Manager string }
		}
	}
	decode(t, a.raw, &w)
	if len(w.Metadata.ManagedFields) != 1 {
		t.Fatalf("the managers are %v", w.Metadata.ManagedFields)
	}
	return w.Metadata.ManagedFields[0].Manager
}
