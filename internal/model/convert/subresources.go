package convert

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/define"
)

// addSubresources registers the Go types of a kind's custom subresources in all its versions. A subresource is the
// same in each version, but its types are declared in one package. Messages of another group are registered in that
// group.
func addSubresources(scheme *runtime.Scheme, k *define.Kind) {
	for _, s := range k.CustomSubresources {
		for _, t := range s.Types(k) {
			for _, v := range k.Versions {
				scheme.AddKnownTypeWithName(s.InVersion(v.GroupVersion).WithKind(t.Name()), newObject(t))
			}
		}
	}
}

// addRequests makes the Go types of requests and options stand for the group's internal version, as the hub does, and
// registers the decoding of options from a query.
func (m *Machinery) addRequests(k *define.Kind) error {
	for _, s := range k.CustomSubresources {
		internal := schema.GroupVersion{Group: s.InVersion(schema.GroupVersion{Group: k.Group}).Group, Version: runtime.APIVersionInternal}
		if s.Structural != nil && !s.ReadsQuery() {
			m.addRules(k, s)
		}
		for _, t := range s.Types(k) {
			m.Scheme.AddKnownTypeWithName(internal.WithKind(t.Name()), newObject(t))
		}
		if s.Default != nil {
			m.Scheme.AddTypeDefaultingFunc(s.New(), func(obj any) { s.Default(obj.(runtime.Object)) })
		}
		if !s.ReadsQuery() {
			continue
		}
		err := m.Scheme.AddConversionFunc((*url.Values)(nil), s.New(), func(in, out any, _ conversion.Scope) error {
			if options, ok := out.(define.Defaulted); ok {
				options.SetDefaults()
			}
			return readQuery(*in.(*url.Values), out)
		})
		if err != nil {
			return fmt.Errorf("options %s: %w", s.Object, err)
		}
		// Policies and webhooks get the options converted to a version, in which they are the same.
		err = m.Scheme.AddConversionFunc(s.New(), s.New(), func(in, out any, _ conversion.Scope) error {
			reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in.(runtime.Object).DeepCopyObject()).Elem())
			return nil
		})
		if err != nil {
			return fmt.Errorf("options %s: %w", s.Object, err)
		}
	}
	return nil
}

// addRules makes the requests of an action subject to their kubebuilder markers when they are decoded.
func (m *Machinery) addRules(k *define.Kind, s *define.Subresource) {
	for _, v := range k.Versions {
		m.structural[s.InVersion(v.GroupVersion).WithKind(s.Object.Name())] = s.Structural
	}
	if shape := s.Structural.Shape(); shape != nil {
		m.shapes[reflect.PointerTo(s.Object)] = shape
	}
}

func newObject(t reflect.Type) runtime.Object {
	return reflect.New(t).Interface().(runtime.Object)
}

// Options reads the options of a connection from a request's query, with defaults filled in; nil if the subresource
// has none.
func Options(s *define.Subresource, query url.Values) (runtime.Object, error) {
	if s.Object == nil {
		return nil, nil
	}
	options := s.New()
	if err := readQuery(query, options); err != nil {
		return nil, err
	}
	if s.Default != nil {
		s.Default(options)
	}
	return options, nil
}

// readQuery sets the fields of options from the parameters with their JSON names. Values are parsed like upstream's
// own options: a boolean is true unless it is false or 0, and a field with a single value takes the first of several.
func readQuery(query url.Values, options any) error {
	v := reflect.ValueOf(options).Elem()
	for f, field := range v.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if values, ok := query[name]; ok && name != "" && len(values) > 0 {
			if err := setParameter(field, values); err != nil {
				return fmt.Errorf("parameter %s: %w", name, err)
			}
		}
	}
	return nil
}

func setParameter(field reflect.Value, values []string) error {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	first := values[0]
	if t, ok := field.Addr().Interface().(*metav1.Time); ok {
		return metav1.Convert_Slice_string_To_v1_Time(&values, t, nil)
	}
	switch field.Kind() {
	case reflect.Slice:
		return setParameters(field, values)
	case reflect.String:
		field.SetString(first)
	case reflect.Bool:
		field.SetBool(!strings.EqualFold(first, "false") && first != "0")
	case reflect.Float64:
		n, err := strconv.ParseFloat(first, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", first)
		}
		field.SetFloat(n)
	default: // Check allows only integers beside these
		n, err := strconv.ParseInt(first, 10, field.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not an integer of %d bits", first, field.Type().Bits())
		}
		field.SetInt(n)
	}
	return nil
}

// setParameters sets a list of strings or integers.
func setParameters(field reflect.Value, values []string) error {
	all := reflect.MakeSlice(field.Type(), len(values), len(values))
	for i := range values {
		if err := setParameter(all.Index(i), values[i:]); err != nil {
			return err
		}
	}
	field.Set(all)
	return nil
}
