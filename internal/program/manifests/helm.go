package manifests

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Placeholders in the objects of a chart, which become references to the chart's values. Each passes the checks of
// a Config, and is replaced in the rendered text.
const (
	helmName      = "annex-helm-name"
	helmNamespace = "annex-helm-space"
	helmImage     = "annex-helm-image"
	helmReplicas  = 424242424
	helmValue     = "annex-helm-value-"
)

// chartValue is a field of the server's pods that a chart exposes as a value.
type chartValue struct {
	// name is the name of the value, path the path of the field.
	name string
	path []string
	// about is the comment in values.yaml.
	about string
}

var podSpec = []string{"spec", "template", "spec"}

// chartValues are omitted from the pods where the chart's user leaves them empty.
var chartValues = []chartValue{
	{"imagePullSecrets", slices.Concat(podSpec, []string{"imagePullSecrets"}), "names of Secrets, as in [{name: registry}]"},
	{"nodeSelector", slices.Concat(podSpec, []string{"nodeSelector"}), "labels of nodes to run on"},
	{"tolerations", slices.Concat(podSpec, []string{"tolerations"}), "tolerations for taints of nodes"},
	{"affinity", slices.Concat(podSpec, []string{"affinity"}), "affinity, in addition to the spread over zones and nodes"},
	{"podAnnotations", []string{"spec", "template", "metadata", "annotations"}, "annotations of the pods"},
}

// Helm returns a chart. Rendered with its default values, as a release with the Config's name in its namespace, it
// equals the output of YAML without the Namespace, which Helm creates.
func (c *Config) Helm() ([]File, error) {
	templated := *c
	templated.Name, templated.Namespace, templated.Image = helmName, helmNamespace, helmImage
	if c.shared() {
		templated.Replicas = helmReplicas
	}
	if c.WithEtcd {
		if c.EtcdSecret == c.etcdName() {
			templated.EtcdSecret = templated.etcdName()
		}
		templated.EtcdServers = nil
		for _, server := range c.EtcdServers {
			templated.EtcdServers = append(
				templated.EtcdServers,
				strings.ReplaceAll(server, c.etcdName()+"."+c.Namespace, templated.etcdName()+"."+helmNamespace),
			)
		}
	}
	if err := templated.resolve(); err != nil {
		return nil, err
	}
	objects, err := templated.Objects()
	if err != nil {
		return nil, err
	}
	values, err := c.values()
	if err != nil {
		return nil, err
	}
	files := []File{
		{"Chart.yaml", fmt.Appendf(nil, "%s\napiVersion: v2\nname: %s\ndescription: The aggregated API server %s\ntype: "+
			"application\nversion: 0.1.0\n", Mark, c.Definition.Name, c.Definition.Name)},
		{"values.yaml", values},
	}
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			continue
		}
		text, err := template(o)
		if err != nil {
			return nil, err
		}
		name := strings.NewReplacer(helmName, c.Name, helmNamespace, c.Namespace).Replace(fileName(o))
		files = append(files, File{"templates/" + name, text})
	}
	return files, nil
}

// template writes an object as a template.
func template(o *unstructured.Unstructured) ([]byte, error) {
	workload := o.GetName() == helmName && (o.GetKind() == "Deployment" || o.GetKind() == "StatefulSet")
	if workload {
		if err := leaveToUser(o); err != nil {
			return nil, err
		}
	}
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("write the template of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	written := strings.ReplaceAll(string(text), "{{", `{{ "{{" }}`)
	written = valueField.ReplaceAllStringFunc(written, func(line string) string {
		found := valueField.FindStringSubmatch(line)
		return fmt.Sprintf(
			"%[1]s{{- with .Values.%[3]s }}\n%[1]s%[2]s:\n%[1]s  {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}",
			found[1],
			found[2],
			found[3],
			len(found[1])+2,
		)
	})
	written = valueItem.ReplaceAllStringFunc(written, func(line string) string {
		found := valueItem.FindStringSubmatch(line)
		return fmt.Sprintf(
			"%[1]s{{- with .Values.%[2]s }}\n%[1]s{{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}",
			found[1],
			found[2],
			len(found[1]),
		)
	})
	written = strings.NewReplacer(
		helmName, "{{ .Release.Name }}", helmNamespace, "{{ .Release.Namespace }}", "image: "+helmImage, "image: {{ .Values.image | quote }}",
		strconv.Itoa(helmReplicas), "{{ .Values.replicas }}").Replace(written)
	if o.GetKind() == "PodDisruptionBudget" {
		written = "{{- if gt (int .Values.replicas) 1 }}\n" + written + "{{- end }}\n"
	}
	return []byte(Mark + "\n" + written), nil
}

var (
	valueField = regexp.MustCompile(`(?m)^( *)([a-zA-Z]+): ` + helmValue + `([a-zA-Z]+)$`)
	valueItem  = regexp.MustCompile(`(?m)^( *)- ` + helmValue + `([a-zA-Z]+)$`)
)

// leaveToUser replaces fields of a workload by references to values.
func leaveToUser(o *unstructured.Unstructured) error {
	for _, v := range chartValues {
		if err := unstructured.SetNestedField(o.Object, helmValue+v.name, v.path...); err != nil {
			return fmt.Errorf("template of %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	path := slices.Concat(podSpec, []string{"containers"})
	containers, _, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil {
		return fmt.Errorf("template of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	server := containers[0].(map[string]any)
	server["resources"] = helmValue + "resources"
	server["args"] = append(server["args"].([]any), helmValue+"extraArgs")
	return unstructured.SetNestedSlice(o.Object, containers, path...)
}

func (c *Config) values() ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s\n# image is the reference of the server's container image.\nimage: %s\n", Mark, c.Image)
	if c.shared() {
		fmt.Fprintf(&out, "# replicas is the number of pods, which share the objects in etcd.\nreplicas: %d\n", c.Replicas)
	}
	resources, err := yaml.Marshal(map[string]any{"resources": corev1.ResourceRequirements{Requests: requests, Limits: limits}})
	if err != nil {
		return nil, fmt.Errorf("write the values of the chart: %w", err)
	}
	fmt.Fprintf(&out, "# resources are the requests and limits of the server; its caches use about half of the memory limit.\n%s", resources)
	for _, v := range chartValues {
		fmt.Fprintf(&out, "# %s: %s.\n%s: null\n", v.name, v.about, v.name)
	}
	fmt.Fprintf(&out, "# extraArgs are additional arguments for serve, after all others.\nextraArgs: []\n")
	return out.Bytes(), nil
}
