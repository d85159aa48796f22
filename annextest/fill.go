package annextest

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/randfill"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
)

// maxDepth bounds objects of recursive types.
const maxDepth = 24

// filler returns a source of random objects of the kind's versions. The objects depend on the seed alone. Their
// values survive JSON, fields of enum types have values of the enum, and the user's fuzzers have changed them.
func filler(k *define.Kind, o *options) *randfill.Filler {
	g := &graph{functions: map[reflect.Type]reflect.Value{}}
	for _, f := range standard {
		function := reflect.ValueOf(f)
		g.functions[function.Type().In(0).Elem()] = function
	}
	seen := map[reflect.Type]bool{}
	for _, v := range k.AllVersions() {
		g.walk(v.Type, convert.DefinitionsOf(v), seen)
	}
	for _, a := range o.fuzzes {
		g.functions[a.of] = a.function(g.functions[a.of], o)
	}
	f := randfill.NewWithSeed(o.seed).MaxDepth(maxDepth)
	for _, function := range g.functions {
		f.Funcs(function.Interface())
	}
	return f
}

// standard are fuzz functions for types whose random values would not survive JSON.
var standard = []any{
	func(s *string, c randfill.Continue) { *s = word(c.Rand) },
	func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
	func(m *metav1.ObjectMeta, c randfill.Continue) {
		*m = metav1.ObjectMeta{
			Name:        word(c.Rand),
			Labels:      map[string]string{word(c.Rand): word(c.Rand)},
			Annotations: map[string]string{word(c.Rand): word(c.Rand)},
		}
	},
	func(m *metav1.FieldsV1, _ randfill.Continue) { *m = *metav1.NewFieldsV1("{}") },
	func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(1e9+c.Int63n(1e9), 0) },
	func(t *metav1.MicroTime, c randfill.Continue) {
		*t = metav1.NewMicroTime(time.UnixMicro(1e15 + c.Int63n(1e15)))
	},
	func(d *metav1.Duration, c randfill.Continue) { d.Duration = time.Duration(c.Int63n(1e15)) },
	func(q *resource.Quantity, c randfill.Continue) {
		*q = resource.MustParse(fmt.Sprint(1+c.Int63n(1e6), []string{"", "m", "k", "Mi"}[c.Intn(4)]))
	},
	func(v *intstr.IntOrString, c randfill.Continue) {
		*v = intstr.FromInt32(c.Int31())
		if c.Bool() {
			*v = intstr.FromString(word(c.Rand))
		}
	},
	func(e *runtime.RawExtension, c randfill.Continue) { e.Raw = anyJSON(c.Rand) },
}

// word returns a random DNS label, which is valid in most fields.
func word(r *rand.Rand) string {
	return fmt.Sprintf("w%x", r.Uint32()>>8)
}

func anyJSON(r *rand.Rand) []byte {
	return fmt.Appendf(nil, `{%q:%d}`, word(r), r.Intn(1000))
}

// graph collects fuzz functions for the types within an object.
type graph struct {
	functions map[reflect.Type]reflect.Value
}

func (g *graph) walk(t reflect.Type, definitions map[string]common.OpenAPIDefinition, seen map[reflect.Type]bool) {
	if seen[t] || g.functions[t].IsValid() {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		g.walk(t.Elem(), definitions, seen)
	case reflect.Map:
		g.walk(t.Key(), definitions, seen)
		g.walk(t.Elem(), definitions, seen)
	case reflect.String:
		g.add(t, func(value reflect.Value, r *rand.Rand) { value.SetString(word(r)) })
	case reflect.Struct:
		if raw, ok := rawJSON(t); ok {
			g.add(t, func(value reflect.Value, r *rand.Rand) { value.FieldByIndex(raw).SetBytes(anyJSON(r)) })
			return
		}
		var properties map[string]spec.Schema
		if named, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
			properties = definitions[named.OpenAPIModelName()].Schema.Properties
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			g.enum(f.Type, properties[name])
			g.walk(f.Type, definitions, seen)
		}
	}
}

// enum adds a function that chooses among the values of an enum's Go type.
func (g *graph) enum(t reflect.Type, property spec.Schema) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
		if property.Items != nil && property.Items.Schema != nil {
			property = *property.Items.Schema
		}
	}
	if t.Kind() != reflect.String || t == reflect.TypeFor[string]() || len(property.Enum) == 0 {
		return
	}
	g.add(t, func(value reflect.Value, r *rand.Rand) {
		value.SetString(fmt.Sprint(property.Enum[r.Intn(len(property.Enum))]))
	})
}

func (g *graph) add(t reflect.Type, fill func(value reflect.Value, r *rand.Rand)) {
	signature := reflect.FuncOf([]reflect.Type{reflect.PointerTo(t), reflect.TypeFor[randfill.Continue]()}, nil, false)
	g.functions[t] = reflect.MakeFunc(signature, func(args []reflect.Value) []reflect.Value {
		fill(args[0].Elem(), args[1].Interface().(randfill.Continue).Rand)
		return nil
	})
}

// rawJSON finds the bytes in a type that holds any JSON, such as JSON of apiextensions.
func rawJSON(t reflect.Type) ([]int, bool) {
	f, ok := t.FieldByName("Raw")
	return f.Index, ok && f.Type == reflect.TypeFor[[]byte]() && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}
