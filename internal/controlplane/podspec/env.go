package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *check) env(at *field.Path, vars []corev1.EnvVar) {
	for i := range vars {
		v, at := &vars[i], at.Index(i)
		if c.filled(at.Child("name"), v.Name) {
			c.each(at.Child("name"), v.Name, validation.IsRelaxedEnvVarName(v.Name))
		}
		if v.ValueFrom != nil {
			c.valueFrom(at.Child("valueFrom"), v)
		}
	}
}

func (c *check) valueFrom(at *field.Path, v *corev1.EnvVar) {
	from, n := v.ValueFrom, 0
	if from.FieldRef != nil {
		n++
		c.fieldRef(at.Child("fieldRef"), from.FieldRef, envFields)
	}
	if from.ResourceFieldRef != nil {
		n++
		c.resourceRef(at.Child("resourceFieldRef"), from.ResourceFieldRef, false)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		n++
		c.keyRef(at.Child("configMapKeyRef"), ref.Name, ref.Key)
	}
	if ref := from.SecretKeyRef; ref != nil {
		n++
		c.keyRef(at.Child("secretKeyRef"), ref.Name, ref.Key)
	}
	if from.FileKeyRef != nil {
		n++
		c.fileKeyRef(at.Child("fileKeyRef"), from.FileKeyRef)
	}
	switch {
	case n == 0:
		c.invalid(at, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case v.Value != "":
		c.invalid(at, "", "may not be specified when `value` is not empty")
	case n > 1:
		c.invalid(at, "", "may not have more than one field specified at a time")
	}
}

// keyRef validates a reference to a key of a config map or secret.
func (c *check) keyRef(at *field.Path, name, key string) {
	c.each(at.Child("name"), name, subdomain(name))
	if c.filled(at.Child("key"), key) {
		c.each(at.Child("key"), key, validation.IsConfigMapKey(key))
	}
}

func (c *check) fileKeyRef(at *field.Path, ref *corev1.FileKeySelector) {
	if c.filled(at.Child("key"), ref.Key) {
		c.each(at.Child("key"), ref.Key, validation.IsRelaxedEnvVarName(ref.Key))
	}
	c.label(at.Child("volumeName"), ref.VolumeName)
	if c.filled(at.Child("path"), ref.Path) {
		c.noBacksteps(at.Child("path"), ref.Path)
	}
}

// The fields of a pod that are available in variables and in files. podFields contains further fields, which are
// known but not available there.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
	podFields  = slices.Concat(envFields, fileFields, []string{"spec.restartPolicy", "spec.schedulerName", "status.phase"})
)

func (c *check) fieldRef(at *field.Path, ref *corev1.ObjectFieldSelector, allowed []string) {
	if !c.filled(at.Child("apiVersion"), ref.APIVersion) || !c.filled(at.Child("fieldPath"), ref.FieldPath) {
		return
	}
	wrong := func(format string, args ...any) {
		c.invalid(at.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: "+fmt.Sprintf(format, args...))
	}
	path, key, subscripted := subscript(ref.FieldPath)
	switch {
	case ref.APIVersion != "v1":
		wrong("unsupported pod version: %s", ref.APIVersion)
	case subscripted && path == "metadata.annotations":
		c.qualified(at, strings.ToLower(key))
	case subscripted && path == "metadata.labels":
		c.qualified(at, key)
	case subscripted:
		wrong("field label does not support subscript: %s", ref.FieldPath)
	case path == "spec.host": // its old name
		if !slices.Contains(allowed, "spec.nodeName") {
			c.add(field.NotSupported(at.Child("fieldPath"), "spec.nodeName", allowed))
		}
	case !slices.Contains(podFields, path):
		wrong("field label not supported: %s", path)
	case !slices.Contains(allowed, path):
		c.add(field.NotSupported(at.Child("fieldPath"), path, allowed))
	}
}

// subscript splits metadata.labels['key'] into its parts.
func subscript(path string) (of, key string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	of, key, ok = strings.Cut(inner, "['")
	if !ok || of == "" {
		return path, "", false
	}
	return of, key, true
}

// The available resource fields of a container, and the divisors of their amounts.
var (
	resourceFields = []string{
		"limits.cpu",
		"limits.ephemeral-storage",
		"limits.memory",
		"requests.cpu",
		"requests.ephemeral-storage",
		"requests.memory",
	}
	byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	cpuDivisors  = []string{"1m", "1"}
)

// resourceRef validates a reference to a resource: of the container itself in a variable, or of a named container in
// a file.
func (c *check) resourceRef(at *field.Path, ref *corev1.ResourceFieldSelector, named bool) {
	hugePages := strings.HasPrefix(ref.Resource, "requests.hugepages-") || strings.HasPrefix(ref.Resource, "limits.hugepages-")
	switch {
	case named && ref.ContainerName == "":
		c.required(at.Child("containerName"), "")
	case ref.Resource == "":
		c.required(at.Child("resource"), "")
	case !hugePages && !slices.Contains(resourceFields, ref.Resource):
		c.add(field.NotSupported(at.Child("resource"), ref.Resource, resourceFields))
	}
	if ref.Divisor.IsZero() {
		return
	}
	var divisors []string
	var of string
	switch ref.Resource {
	case "limits.cpu", "requests.cpu":
		divisors, of = cpuDivisors, "cpu"
	case "limits.memory", "requests.memory":
		divisors, of = byteDivisors, string(corev1.ResourceMemory)
	case "limits.ephemeral-storage", "requests.ephemeral-storage":
		divisors, of = byteDivisors, "local ephemeral storage"
	default:
		if !hugePages {
			return
		}
		divisors, of = byteDivisors, "hugepages"
	}
	if slices.Contains(divisors, ref.Divisor.String()) {
		return
	}
	listed := strings.Join(divisors, ", ")
	if of == "cpu" {
		listed = "1m and 1"
	}
	c.invalid(at.Child("divisor"), ref.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", listed, of))
}

func (c *check) envFrom(at *field.Path, sources []corev1.EnvFromSource) {
	for i := range sources {
		s, each := &sources[i], at.Index(i)
		if s.Prefix != "" {
			c.each(each.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))
		}
		if s.ConfigMapRef != nil {
			c.envSource(each.Child("configMapRef", "name"), s.ConfigMapRef.Name)
		}
		if s.SecretRef != nil {
			c.envSource(each.Child("secretRef", "name"), s.SecretRef.Name)
		}
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			c.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			c.invalid(at, "", "may not have more than one field specified at a time")
		}
	}
}

func (c *check) envSource(at *field.Path, name string) {
	if c.filled(at, name) {
		c.each(at, name, prefixOfSubdomain(name))
	}
}
