// Package leading contains the built-in kinds that controllers need in every mode: leases, for leader election, and
// events. Control planes have them, and so do standalone servers with controllers.
package leading

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
)

// EventTTL is the default time for which events are kept.
const EventTTL = time.Hour

// Groups returns the groups of leases and events, for a server that is not a control plane. It returns none for a
// server without controllers, and omits kinds that the definition has itself.
func Groups(definition *define.Server) []define.Group {
	if len(definition.Controllers) == 0 {
		return nil
	}
	has := func(group, resource string) bool {
		return slices.ContainsFunc(definition.Kinds(), func(k *define.Kind) bool { return k.Group == group && k.Resource == resource })
	}
	var groups []define.Group
	if event, alias := Events(EventTTL); !has("", event.Resource) && !has(alias.Group, alias.Resource) {
		groups = append(
			groups,
			define.Group{Name: "", Kinds: []*define.Kind{event}},
			define.Group{Name: alias.Group, Kinds: []*define.Kind{alias}},
		)
	}
	if lease := Leases(); !has(coordinationv1.GroupName, lease.Resource) {
		groups = append(groups, define.Group{Name: coordinationv1.GroupName, Kinds: []*define.Kind{lease}})
	}
	return groups
}

var described = metav1.ObjectMeta{}.SwaggerDoc()

// column returns a column of strings.
func column[T any](name, description string, value func(*T) any) define.Column {
	return define.Column{
		Name:        name,
		Type:        "string",
		Description: description,
		Value:       func(obj runtime.Object) any { return value(any(obj).(*T)) },
	}
}
