package annextest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
)

// RoundTrip fails the test if a version of a kind cannot represent a value of another version. It fills objects of
// each version at random and converts them in the same ways as a server:
//
//   - to JSON, and to protobuf if the types have its methods, and back;
//   - from each version to the hub and back, as an object that a client writes and reads;
//   - from the hub to each version and back, as an object that is stored in that version.
//
// Defaults are filled in wherever a server does so. A failure names the field with its old and new value. A
// conversion may refuse objects with an error: toHub may refuse any object, fromHub only objects that are invalid by
// the kind's validation or by the tags or markers of its types. But if all objects that set a field were refused,
// RoundTrip fails, since the field is untested; see Fuzz. Declare losses that a version accepts with KnownLoss.
func RoundTrip(t *testing.T, server annex.Server, opts ...Option) {
	t.Helper()
	o := compile(opts)
	ways, err := waysOf(server, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			for _, problem := range w.problems() {
				t.Error(problem)
			}
		})
	}
	for _, mistake := range o.mistakes() {
		t.Error(mistake)
	}
}

func waysOf(server annex.Server, o *options) ([]*way, error) {
	definition, scheme, err := compiled(server)
	if err != nil {
		return nil, err
	}
	var ways []*way
	for _, k := range definition.Kinds() {
		for _, v := range k.Versions {
			if !v.SameType { // otherwise the Go type is another version's
				ways = append(ways, &way{kind: k, version: v, name: versionName(k, v), scheme: scheme, options: o})
			}
		}
	}
	return ways, nil
}

// compiled returns the server's definition, and the scheme that converts its objects.
func compiled(server annex.Server) (*define.Server, *runtime.Scheme, error) {
	definition := &define.Server{Name: server.Name}
	for _, g := range server.Groups {
		define.AddGroup(definition, g.Name, g.Kinds)
	}
	if err := define.Complete(definition); err != nil {
		return nil, nil, fmt.Errorf("server %s: %w", server.Name, err)
	}
	machinery, err := convert.New(definition)
	if err != nil {
		return nil, nil, fmt.Errorf("server %s: %w", server.Name, err)
	}
	return definition, machinery.Scheme, nil
}

func versionName(k *define.Kind, v *define.Version) string {
	return k.GroupResource().String() + "/" + v.GroupVersion.Version
}

// way is the test of one version of a kind.
type way struct {
	kind    *define.Kind
	version *define.Version
	name    string
	scheme  *runtime.Scheme
	options *options
	found   []string
}

// problems converts random objects in all ways of the version and returns the errors.
func (w *way) problems() []string {
	w.encoded()
	if w.version != w.kind.Hub() {
		w.throughHub()
		w.throughVersion()
	}
	return w.found
}

func (w *way) errorf(format string, args ...any) {
	w.found = append(w.found, fmt.Sprintf(format, args...))
}

// trip holds the results of the random objects of one way and direction.
type trip struct {
	name             string
	filled, accepted map[string]bool
	refused          error
	reported         map[string]bool
}

func newTrip(name string) *trip {
	return &trip{name: name, filled: map[string]bool{}, accepted: map[string]bool{}, reported: map[string]bool{}}
}

// each calls do with random, defaulted objects of a version. An error of do means that it refuses the object.
func (w *way) each(name string, v *define.Version, do func(trip *trip, obj runtime.Object) error) {
	trip := newTrip(name)
	source := filler(w.kind, w.options).NilChance(0.3).NumElements(1, 3)
	for range w.options.iterations {
		obj := v.New()
		fill(source, obj)
		w.scheme.Default(obj)
		fields := fieldsOf(obj)
		maps.Copy(trip.filled, fields)
		if err := do(trip, obj); err != nil {
			trip.refused = err
			continue
		}
		maps.Copy(trip.accepted, fields)
	}
	for _, field := range slices.Sorted(maps.Keys(trip.filled)) {
		if !trip.accepted[field] {
			w.errorf("%s: the conversion rejected all random objects with %s, so the field is not tested: pass a function to "+
				"annextest.Fuzz that creates valid objects. The last error: %v",
				name, field, trip.refused)
		}
	}
}

// fill fills an object at random and clears its TypeMeta.
func fill(source *randfill.Filler, obj runtime.Object) {
	source.Fill(obj)
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
}

// report fails the test for each field that has changed, once for each field.
func (w *way) report(trip *trip, was, is runtime.Object) {
	for _, d := range differences(was, is) {
		if trip.reported[d.field] || w.options.lost(w.name, d.field) {
			continue
		}
		trip.reported[d.field] = true
		w.errorf("%s: %s is lost or changed (%s: %s became %s)", trip.name, d.field, d.path, d.was, d.is)
	}
}

// encoded converts objects of the version to each of its encodings and back.
func (w *way) encoded() {
	w.each("as JSON", w.version, func(trip *trip, obj runtime.Object) error {
		data, err := json.Marshal(obj)
		if err != nil {
			return err
		}
		back := w.version.New()
		if err := json.Unmarshal(data, back); err != nil {
			return err
		}
		w.report(trip, obj, back)
		return nil
	})
	if !hasProtobuf(w.version) {
		return
	}
	w.each("as protobuf", w.version, func(trip *trip, obj runtime.Object) error {
		data, err := obj.(protobufObject).Marshal()
		if err != nil {
			return err
		}
		back := w.version.New()
		if err := back.(protobufObject).Unmarshal(data); err != nil {
			return err
		}
		w.report(trip, obj, back)
		return nil
	})
}

// protobufObject is an object with the methods of protobuf.
type protobufObject interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func hasProtobuf(v *define.Version) bool {
	_, ok := v.New().(protobufObject)
	return ok
}

func (w *way) throughHub() {
	hub := w.kind.Hub()
	name := fmt.Sprintf("to %s and back", hub.GroupVersion.Version)
	w.each(name, w.version, func(trip *trip, obj runtime.Object) error {
		there, back := hub.New(), w.version.New()
		if err := w.scheme.Convert(obj.DeepCopyObject(), there, nil); err != nil {
			return err
		}
		if err := w.scheme.Convert(there, back, nil); err != nil {
			return w.unreadable(trip, there, err)
		}
		w.report(trip, obj, back)
		return nil
	})
}

// throughVersion tests an object that is stored in the version: from the hub to the version and back.
func (w *way) throughVersion() {
	hub := w.kind.Hub()
	name := fmt.Sprintf("from %s and back", hub.GroupVersion.Version)
	w.each(name, hub, func(trip *trip, obj runtime.Object) error {
		there, back := w.version.New(), hub.New()
		if err := w.scheme.Convert(obj.DeepCopyObject(), there, nil); err != nil {
			return w.unreadable(trip, obj, err)
		}
		w.scheme.Default(there)
		if err := w.scheme.Convert(there, back, nil); err != nil {
			if !trip.reported["error"] {
				trip.reported["error"] = true
				w.errorf(
					"%s: the conversion to the hub rejects an object of the conversion from the hub: %v (%s)",
					trip.name,
					err,
					show(reflect.ValueOf(there)),
				)
			}
			return err
		}
		w.report(trip, obj, back)
		return nil
	})
}

// unreadable fails the test if a hub object that does not convert to the version is valid, since it could be stored,
// and then not be read in the version.
func (w *way) unreadable(trip *trip, hub runtime.Object, err error) error {
	invalid := w.scheme.Validate(context.Background(), nil, hub)
	if rules := w.kind.Hub().Structural; rules != nil {
		if doc, err := rules.Read(hub); err == nil {
			invalid = append(invalid, rules.Validate(context.Background(), doc)...)
		}
	}
	if validate := w.kind.Validate; validate != nil {
		invalid = append(invalid, validate(context.Background(), hub)...)
	}
	if len(invalid) > 0 {
		return err
	}
	if !trip.reported["error"] {
		trip.reported["error"] = true
		w.errorf("%s: a valid object cannot be read in this version: %v (%s)", trip.name, err, show(reflect.ValueOf(hub)))
	}
	return err
}
