// Package builtin holds the kinds that a control plane serves by itself, as a kube-apiserver
// does: config maps, secrets, events, quotas, limit ranges, pod templates and services of the core group,
// leases, webhooks and policies of admission, storage migrations, and API services. They are kinds as a user's
// are, with the defaults, the validation and the columns of kube-apiserver. Whether these are the
// same is known from a test beside a real one.
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

// EventTTL is how long events are kept unless Options say otherwise.
const EventTTL = leading.EventTTL

// Options say which kinds there are.
type Options struct {
	// EventTTL is how long an event is kept after it was last written, in whole seconds; 0 is
	// EventTTL, and negative is for ever.
	EventTTL time.Duration
	// Without are the names of kinds and groups that are left out: those of resources, such as
	// configmaps and leases.coordination.k8s.io, and those of groups, such as
	// admissionregistration.k8s.io. Without events, events.k8s.io has none either.
	Without []string
	// RuntimeConfig turns kinds of those that are left on and off, by the names of upstream's option.
	RuntimeConfig map[string]bool
}

// Groups returns the groups with all their kinds.
func Groups() []define.Group {
	return all(EventTTL)
}

// Names are those of all kinds, for messages and completion.
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

// Groups returns the groups without what is left out. It is an error if that is not there.
func (o Options) Groups() ([]define.Group, error) {
	ttl := o.EventTTL
	switch {
	case ttl == 0:
		ttl = EventTTL
	case ttl < 0:
		ttl = 0
	case ttl%time.Second != 0:
		return nil, fmt.Errorf("EventTTL %s: want whole seconds", ttl)
	}
	groups := all(ttl)
	for _, without := range o.Without {
		if !leaveOut(groups, without) {
			return nil, fmt.Errorf("there is no kind %q to be without; there are %s", without, strings.Join(Names(), ", "))
		}
	}
	if err := turnOnAndOff(groups, o.RuntimeConfig); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(groups, func(g define.Group) bool { return len(g.Kinds) == 0 }), nil
}

// leaveOut takes a kind, with its aliases, or all kinds of a group out of the groups, and says
// whether there were any.
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

// name is that of the kind's resource, with its group.
func name(g define.Group, k *define.Kind) string {
	return strings.TrimSuffix(k.Resource+"."+g.Name, ".")
}

// all makes the groups. The first is the core group.
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

// rules are what a kind with the Go type T says of its objects, each nil for nothing.
type rules[T any] struct {
	fill           func(*T)
	create         func(*T)
	update         func(obj, old *T)
	validate       func(*T) field.ErrorList
	validateUpdate func(obj, old *T) field.ErrorList
	validateStatus func(obj, old *T) field.ErrorList
	warn           func(*T) []string
}

// kind makes a kind with the Go type T, which has the list type L.
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

// column is a column of strings, unless its type is said to be another one.
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

// age is the age as most of kube-apiserver's tables have it.
func age() define.Column {
	return define.Column{Name: "Age", Type: "string", Description: described["creationTimestamp"], Value: func(obj runtime.Object) any {
		return obj.(metav1.Object).GetCreationTimestamp()
	}}
}

// createdAt is what kube-apiserver prints of kinds without columns of their own.
func createdAt() define.Column {
	return define.Column{Name: "Created At", Type: "date", Description: described["creationTimestamp"], Value: func(obj runtime.Object) any {
		return obj.(metav1.Object).GetCreationTimestamp().UTC().Format(time.RFC3339)
	}}
}

const immutable = "field is immutable"
