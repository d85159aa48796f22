// Package builtin contains the kinds that a control plane serves by itself, like a kube-apiserver: config maps,
// secrets, events, quotas, limit ranges, pod templates and services of the core group, leases, admission webhooks and
// policies, storage migrations, and API services. They are defined like a user's kinds, with the defaults, validation
// and columns of kube-apiserver. A test beside a real kube-apiserver verifies that these are the same.
package builtin

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/standalone/leading"
)

// EventTTL is how long events are kept unless Options set another time.
const EventTTL = leading.EventTTL

// Options select the built-in kinds.
type Options struct {
	// EventTTL is how long an event is kept after its last write, in whole seconds. 0 means the constant EventTTL,
	// and a negative value means forever.
	EventTTL time.Duration
	// Without are kinds and groups to leave out: resources, such as configmaps and leases.coordination.k8s.io, or
	// groups, such as admissionregistration.k8s.io. Leaving out events also leaves out those of events.k8s.io.
	Without []string
	// RuntimeConfig turns some of the remaining kinds on and off, with the keys of upstream's option.
	RuntimeConfig map[string]bool
	// Elsewhere reports whether a key of RuntimeConfig is about kinds of an extension. Nil means that there are none.
	Elsewhere func(key string) bool
}

// Groups returns the groups with all their kinds.
func Groups() []define.Group {
	return all(EventTTL)
}

// Names returns the names of all kinds, for messages and completion.
func Names() []string {
	var names []string
	for _, g := range Groups() {
		for _, k := range g.Kinds {
			if k.AliasOf == nil {
				names = append(names, name(g, k))
			}
		}
	}
	return names
}

// Groups returns the selected groups. It reports an error for an unknown name.
func (o Options) Groups() ([]define.Group, error) {
	ttl := o.EventTTL
	switch {
	case ttl == 0:
		ttl = EventTTL
	case ttl < 0:
		ttl = 0
	case ttl%time.Second != 0:
		return nil, fmt.Errorf("EventTTL %s: must be a whole number of seconds", ttl)
	}
	groups := all(ttl)
	for _, without := range o.Without {
		if !leaveOut(groups, without) {
			return nil, fmt.Errorf("unknown kind %q; kinds that can be disabled: %s", without, strings.Join(Names(), ", "))
		}
	}
	elsewhere := o.Elsewhere
	if elsewhere == nil {
		elsewhere = func(string) bool { return false }
	}
	if err := turnOnAndOff(groups, o.RuntimeConfig, elsewhere); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(groups, func(g define.Group) bool { return len(g.Kinds) == 0 }), nil
}

// leaveOut removes a kind with its aliases, or all kinds of a group, and reports whether there were any.
func leaveOut(groups []define.Group, without string) bool {
	found := false
	for i := range groups {
		g := &groups[i]
		g.Kinds = slices.DeleteFunc(g.Kinds, func(k *define.Kind) bool {
			out := g.Name != "" && g.Name == without || name(*g, k) == without || k.AliasOf != nil && name(groups[0], k.AliasOf) == without
			found = found || out
			return out
		})
	}
	return found
}

// name returns the kind's resource with its group.
func name(g define.Group, k *define.Kind) string {
	return strings.TrimSuffix(k.Resource+"."+g.Name, ".")
}

// all returns the groups. The first is the core group.
func all(eventTTL time.Duration) []define.Group {
	event, alias := leading.Events(eventTTL)
	return []define.Group{
		{Name: "", Kinds: []*define.Kind{configMaps(), secrets(), event, resourceQuotas(), limitRanges(), podTemplates(), services()}},
		{Name: "events.k8s.io", Kinds: []*define.Kind{alias}},
		{Name: "coordination.k8s.io", Kinds: []*define.Kind{leading.Leases(), leaseCandidates()}},
		{Name: "admissionregistration.k8s.io", Kinds: admissionKinds()},
		{Name: "storagemigration.k8s.io", Kinds: []*define.Kind{storageMigrations()}},
		{Name: "apiregistration.k8s.io", Kinds: []*define.Kind{apiServices()}},
	}
}

// rules are the hooks of a kind with the Go type T. Each may be nil.
type rules[T any] struct {
	fill           func(*T)
	create         func(*T)
	update         func(obj, old *T)
	validate       func(*T) field.ErrorList
	validateUpdate func(obj, old *T) field.ErrorList
	validateStatus func(obj, old *T) field.ErrorList
	warn           func(*T) []string
}

// kind returns a kind with the Go type T and the list type L.
func kind[T, L any](resource string, facts func() api.Facts, say rules[T], columns ...define.Column) *define.Kind {
	k := &define.Kind{
		Resource: resource,
		Versions: []*define.Version{{Facts: facts, Type: reflect.TypeFor[T](), ListType: reflect.TypeFor[L]()}},
		Columns:  columns, WithoutAge: true,
	}
	of := func(obj runtime.Object) *T { return any(obj).(*T) }
	if say.fill != nil {
		k.Versions[0].Default = func(obj runtime.Object) { say.fill(of(obj)) }
	}
	if say.create != nil {
		k.PrepareForCreate = func(_ context.Context, obj runtime.Object) { say.create(of(obj)) }
	}
	if say.update != nil {
		k.PrepareForUpdate = func(_ context.Context, obj, old runtime.Object) { say.update(of(obj), of(old)) }
	}
	if say.validate != nil {
		k.Validate = func(_ context.Context, obj runtime.Object) field.ErrorList { return say.validate(of(obj)) }
	}
	between := func(validate func(obj, old *T) field.ErrorList) func(context.Context, runtime.Object, runtime.Object) field.ErrorList {
		if validate == nil {
			return nil
		}
		return func(_ context.Context, obj, old runtime.Object) field.ErrorList { return validate(of(obj), of(old)) }
	}
	k.ValidateUpdate, k.ValidateStatus = between(say.validateUpdate), between(say.validateStatus)
	if say.warn != nil {
		k.Warn = func(_ context.Context, obj runtime.Object) []string { return say.warn(of(obj)) }
	}
	return k
}

// column returns a column of strings.
func column[T any](name, description string, value func(*T) any) define.Column {
	return define.Column{
		Name:        name,
		Type:        "string",
		Description: description,
		Value:       func(obj runtime.Object) any { return value(any(obj).(*T)) },
	}
}

func integer(c define.Column) define.Column {
	c.Type = "integer"
	return c
}

func wide(c define.Column) define.Column {
	c.Wide = true
	return c
}

func selectable[T any](path string, value func(*T) string) define.SelectableField {
	return define.SelectableField{Path: path, Value: func(obj runtime.Object) string { return value(any(obj).(*T)) }}
}

var described = metav1.ObjectMeta{}.SwaggerDoc()

// age returns the age column of most of kube-apiserver's tables.
func age() define.Column {
	return define.Column{Name: "Age", Type: "string", Description: described["creationTimestamp"], Value: func(obj runtime.Object) any {
		return obj.(metav1.Object).GetCreationTimestamp()
	}}
}

// createdAt returns the column that kube-apiserver prints for kinds without columns of their own.
func createdAt() define.Column {
	return define.Column{Name: "Created At", Type: "date", Description: described["creationTimestamp"], Value: func(obj runtime.Object) any {
		return obj.(metav1.Object).GetCreationTimestamp().UTC().Format(time.RFC3339)
	}}
}

const immutable = "field is immutable"
