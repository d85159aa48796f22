package podspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// check collects the errors of one template. Its methods are named after the errors, or after the parts that they
// validate.
type check struct {
	spec *corev1.PodSpec
	// podContext is the pod's security context; empty if there is none.
	podContext *corev1.PodSecurityContext
	// volumes are the valid volumes, which containers may refer to.
	volumes map[string]*corev1.VolumeSource
	// claims are the names of the pod's resource claims, sorted.
	claims []string
	errs   field.ErrorList
}

func (c *check) add(errs ...*field.Error) { c.errs = append(c.errs, errs...) }

func (c *check) invalid(at *field.Path, value any, detail string) {
	c.add(field.Invalid(at, value, detail))
}

// each adds an error for each detail.
func (c *check) each(at *field.Path, value any, details []string) {
	for _, detail := range details {
		c.invalid(at, value, detail)
	}
}

func (c *check) required(at *field.Path, detail string) { c.add(field.Required(at, detail)) }

func (c *check) forbidden(at *field.Path, detail string) { c.add(field.Forbidden(at, detail)) }

// filled requires a non-empty text, and reports whether it is present.
func (c *check) filled(at *field.Path, text string) bool {
	if text == "" {
		c.required(at, "")
	}
	return text != ""
}

// label requires a DNS label.
func (c *check) label(at *field.Path, text string) {
	if c.filled(at, text) {
		c.each(at, text, validation.IsDNS1123Label(text))
	}
}

func (c *check) selector(at *field.Path, selector *metav1.LabelSelector) {
	c.add(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)...)
}

// oneOf requires one of the values.
func oneOf[T ~string](c *check, at *field.Path, value T, values ...T) {
	if !slices.Contains(values, value) {
		c.add(field.NotSupported(at, value, values))
	}
}

// chosen requires one of the values, and reports an empty one as missing.
func chosen[T ~string](c *check, at *field.Path, value T, values ...T) {
	if c.filled(at, string(value)) {
		oneOf(c, at, value, values...)
	}
}

// between requires a number in a range, including both ends.
func between[T int32 | int64](c *check, at *field.Path, value, least, most T) {
	if value < least || value > most {
		c.invalid(at, value, validation.InclusiveRangeError(int(least), int(most)))
	}
}

// mode requires valid file permissions, if there are any.
func (c *check) mode(at *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		c.invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

func (c *check) user(at *field.Path, user *int64) {
	if user != nil {
		c.each(at, *user, validation.IsValidUserID(*user))
	}
}

func (c *check) group(at *field.Path, group *int64) {
	if group != nil {
		c.each(at, *group, validation.IsValidGroupID(*group))
	}
}

// noBacksteps requires a path that does not leave its directory.
func (c *check) noBacksteps(at *field.Path, path string) {
	if steps(path) {
		c.invalid(at, path, "must not contain '..'")
	}
}

func steps(path string) bool { return slices.Contains(strings.Split(path, "/"), "..") }

// descending requires a path below a directory.
func (c *check) descending(at *field.Path, path string) {
	if strings.HasPrefix(path, "/") {
		c.invalid(at, path, "must be a relative path")
	}
	c.noBacksteps(at, path)
}

// file requires a path below a directory whose first element is not reserved by mounted directories.
func (c *check) file(at *field.Path, path string) {
	c.descending(at, path)
	if strings.HasPrefix(path, "..") && !strings.HasPrefix(path, "../") {
		c.invalid(at, path, "must not start with '..'")
	}
}

// only forbids the non-zero fields of a struct, except for the allowed ones.
func (c *check) only(at *field.Path, of any, detail string, allowed ...string) {
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if slices.Contains(allowed, name) || v.Field(i).IsZero() {
			continue
		}
		first, size := utf8.DecodeRuneInString(name)
		c.forbidden(at.Child(string(unicode.ToLower(first))+name[size:]), detail)
	}
}

// internal formats a value as in kube-apiserver's messages: with all fields of its internal type, by their Go names.
type internal struct{ value any }

func (i internal) MarshalJSON() ([]byte, error) {
	return []byte(goJSON(reflect.ValueOf(i.value))), nil
}

func goJSON(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return goJSON(v.Elem())
	case v.Kind() != reflect.Struct || !strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/"):
		raw, err := json.Marshal(v.Interface())
		if err != nil {
			return "null"
		}
		return string(raw)
	}
	var fields []string
	for i := range v.NumField() {
		fields = append(fields, fmt.Sprintf("%q:%s", v.Type().Field(i).Name, goJSON(v.Field(i))))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

// sorted returns the keys of a map in order, so that messages have a stable order.
func sorted[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
