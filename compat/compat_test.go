//go:build compat

// Package compat serves API packages of other projects, unmodified, and compares rejections and stored objects with
// those of a server of their CustomResourceDefinitions. annex generate --for writes their facts; make compat runs it,
// and sets the tag of this file.
package compat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	_ "sigs.k8s.io/cluster-api/version" // its module has the definitions
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/compat/facts/certmanager"
	"github.com/annexapi/annex/compat/facts/cluster"
	"github.com/annexapi/annex/compat/facts/gateway"
)

type project struct {
	module     string // has the definition and the examples
	definition string
	gv         schema.GroupVersion
	kind       string
	facts      func() api.Facts // made by annex generate --for
	serve      func(resource string, facts func() api.Facts) annex.Kind
	// same means that the module ships controller-gen's output for the package. gateway-api has a generator and
	// markers of its own beside it.
	same bool
	// strict are fields whose Go types accept less than the schema: durations.
	strict []string
	// basis is a valid object to derive invalid ones from, beside the examples.
	basis string
}

var projects = map[string]project{
	"cert-manager": {
		module:     "github.com/cert-manager/cert-manager",
		definition: "deploy/crds/cert-manager.io_certificates.yaml",
		gv:         certmanagerv1.SchemeGroupVersion, kind: "Certificate", facts: certmanager.API, same: true,
		strict: []string{".spec.duration ", ".spec.renewBefore "},
		serve: func(resource string, facts func() api.Facts) annex.Kind {
			return annex.KindOf[certmanagerv1.Certificate, certmanagerv1.CertificateList](resource, facts)
		},
		basis: `{"spec": {"secretName": "s", "commonName": "example.com", "dnsNames": ["example.com"], "duration": "2160h",
			"issuerRef": {"name": "ca", "kind": "Issuer"}, "privateKey": {"algorithm": "RSA", "size": 2048, "rotationPolicy": "Always"},
			"usages": ["server auth"], "keystores": {"pkcs12": {"create": true, "passwordSecretRef": {"name": "p", "key": "k"}}},
			"additionalOutputFormats": [{"type": "DER"}], "revisionHistoryLimit": 2, "nameConstraints": {"critical": true}}}`,
	},
	"gateway-api": {
		module:     "sigs.k8s.io/gateway-api",
		definition: "config/crd/experimental/gateway.networking.k8s.io_httproutes.yaml",
		gv:         schema.GroupVersion(gatewayv1.GroupVersion), kind: "HTTPRoute", facts: gateway.API,
		serve: func(resource string, facts func() api.Facts) annex.Kind {
			return annex.KindOf[gatewayv1.HTTPRoute, gatewayv1.HTTPRouteList](resource, facts)
		},
		basis: `{"spec": {"parentRefs": [{"name": "gw"}], "hostnames": ["example.com"], "rules": [{
			"matches": [{"path": {"type": "PathPrefix", "value": "/a"}, "headers": [{"name": "x", "value": "y"}], "method": "GET"}],
			"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}]}}],
			"timeouts": {"request": "10s"}, "backendRefs": [{"name": "b", "port": 80, "weight": 1}]}]}}`,
	},
	"cluster-api": {
		module:     "sigs.k8s.io/cluster-api",
		definition: "core/config/crd/bases/cluster.x-k8s.io_clusters.yaml",
		gv:         clusterv1.GroupVersion, kind: "Cluster", facts: cluster.API, same: true,
		serve: func(resource string, facts func() api.Facts) annex.Kind {
			return annex.KindOf[clusterv1.Cluster, clusterv1.ClusterList](resource, facts)
		},
		basis: `{"spec": {"paused": false, "clusterNetwork": {"apiServerPort": 6443, "serviceDomain": "cluster.local",
			"pods": {"cidrBlocks": ["10.0.0.0/8"]}, "services": {"cidrBlocks": ["10.1.0.0/16"]}},
			"controlPlaneEndpoint": {"host": "h", "port": 6443},
			"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DockerCluster", "name": "c"},
			"availabilityGates": [{"conditionType": "Ready"}]}}`,
	},
}

func TestForeignTypes_likeCRDs(t *testing.T) {
	for name, p := range projects {
		t.Run(name, func(t *testing.T) {
			dir := moduleDir(t, p.module)
			ours := p.generated(t)
			shipped := p.shipped(t, filepath.Join(dir, p.definition))
			same := sameSchema(t, ours, shipped)
			if p.same && !same {
				t.Errorf("the markers make another schema than the module ships")
			}
			ref, theirs := newReference(t, ours), newReference(t, shipped)
			c := p.start(t, ours.Spec.Names.Plural)

			var accepted, refused, invalid, differing, unlike, narrow, objects int
			compare := func(what string, doc map[string]any) bool {
				want, wantObject := ref.create(t, doc)
				got, object := c.create(t, doc)
				if causes, _ := theirs.create(t, doc); !slices.Equal(want, causes) {
					unlike++
				}
				if len(want) == 0 && p.narrower(what) && len(got) == 1 && strings.HasPrefix(got[0], "400 ") {
					narrow++
					return true
				}
				if !slices.Equal(got, want) {
					differing++
					t.Errorf("%s: got\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
				}
				if len(want) == 0 && len(got) == 0 {
					objects++
					if spec, _ := wantObject["spec"].(map[string]any); len(spec) > 0 &&
						len((&unstructured.Unstructured{Object: object}).GetManagedFields()) == 0 {
						t.Errorf("%s: it has no managed fields", what)
					}
					if got, want := p.spec(t, object, ref.schema), p.spec(t, wantObject, ref.schema); got != want {
						differing++
						t.Errorf("%s becomes\n  %s\nwant\n  %s", what, got, want)
					}
				}
				return len(want) == 0
			}
			bases := []map[string]any{p.object(t, p.basis)}
			if !compare("basis", bases[0]) {
				t.Fatal("the basis is refused")
			}
			for _, e := range p.examples(t, dir) {
				if compare(e.file, e.doc) {
					accepted++
					bases = append(bases, e.doc)
				} else {
					refused++
				}
			}
			for _, doc := range bases {
				for what, mutant := range mutants(doc, ours.Spec.Versions[0].Schema.OpenAPIV3Schema) {
					if !compare(what, mutant) {
						invalid++
					}
				}
			}
			t.Logf("%s of %s: schema as shipped: %v; examples accepted: %d, refused: %d; derived and refused: %d; objects compared: %d; "+
				"differences: %d; "+
				"refused because of the Go type: %d; answered otherwise by what is shipped: %d",
				p.kind, p.gv, same, accepted, refused, invalid, objects, differing, narrow, unlike)
			if same && unlike > 0 {
				t.Errorf("%d answers differ although the schemas do not", unlike)
			}
			if invalid == 0 {
				t.Error("nothing was refused")
			}
		})
	}
}

// spec returns the spec of an object, as JSON, without the fields that a Go type omits, zeros of fields that have no
// default, and empty structs that a Go type writes. Durations are in the form of their Go type.
func (p project) spec(t *testing.T, object map[string]any, s *structuralschema.Structural) string {
	t.Helper()
	content := map[string]any{"spec": runtime.DeepCopyJSONValue(object["spec"])}
	leaveOutZeros(content, s)
	if spec, ok := content["spec"].(map[string]any); ok {
		for _, field := range p.strict {
			name := strings.TrimSpace(strings.TrimPrefix(field, ".spec."))
			if text, ok := spec[name].(string); ok {
				duration, err := time.ParseDuration(text)
				if err != nil {
					t.Fatal(err)
				}
				spec[name] = duration.String()
			}
		}
	}
	data, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func leaveOutZeros(value any, s *structuralschema.Structural) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			property, ok := s.Properties[name]
			if !ok {
				continue // of a map, whose values Go keeps
			}
			leaveOutZeros(inner, &property)
			if property.Default.Object == nil && isZero(inner) {
				delete(value, name)
			}
		}
	case []any:
		for _, element := range value {
			leaveOutZeros(element, s.Items)
		}
	}
}

func isZero(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(value) == 0
	case []any:
		return len(value) == 0
	default:
		return reflect.ValueOf(value).IsZero()
	}
}

func (p project) narrower(what string) bool {
	return slices.ContainsFunc(p.strict, func(prefix string) bool { return strings.HasPrefix(what, prefix) })
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// generated returns the definition that annex generate put into the package's facts.
func (p project) generated(t *testing.T) apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal([]byte(p.facts().CustomResources()[p.kind]), &crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// shipped reads the definition in a module, of the one version and without descriptions.
func (p project) shipped(t *testing.T, file string) apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions = slices.DeleteFunc(
		crd.Spec.Versions,
		func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name != p.gv.Version },
	)
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("%s has no version %s", file, p.gv.Version)
	}
	undescribe(crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	return crd
}

func undescribe(s *apiextensionsv1.JSONSchemaProps) {
	s.Description = ""
	for name, property := range s.Properties {
		undescribe(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		undescribe(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		undescribe(s.AdditionalProperties.Schema)
	}
}

func sameSchema(t *testing.T, a, b apiextensionsv1.CustomResourceDefinition) bool {
	t.Helper()
	text := func(crd apiextensionsv1.CustomResourceDefinition) string {
		data, err := json.Marshal(crd.Spec.Versions[0].Schema)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	return text(a) == text(b)
}

func (p project) object(t *testing.T, text string) map[string]any {
	t.Helper()
	doc := map[string]any{}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	doc["apiVersion"], doc["kind"] = p.gv.String(), p.kind
	doc["metadata"] = map[string]any{"name": "basis", "namespace": "default"}
	return doc
}

type example struct {
	file string
	doc  map[string]any
}

// examples returns the objects of the kind in the YAML files of a module.
func (p project) examples(t *testing.T, dir string) []example {
	t.Helper()
	var all []example
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, part := range bytes.Split(data, []byte("\n---")) {
			doc := map[string]any{}
			if yaml.Unmarshal(part, &doc) != nil || doc["apiVersion"] != p.gv.String() || doc["kind"] != p.kind {
				continue // templates among them
			}
			if metadata, ok := doc["metadata"].(map[string]any); ok {
				metadata["namespace"] = "default"
			}
			rel, _ := filepath.Rel(dir, path)
			all = append(all, example{fmt.Sprintf("%s#%d", rel, i), doc})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// served is a server of one project.
type served struct {
	client *http.Client
	url    string
}

func (p project) start(t *testing.T, resource string) served {
	t.Helper()
	config := annextest.Start(
		t,
		annex.Server{Name: "compat", Groups: []annex.Group{{Name: p.gv.Group, Kinds: []annex.Kind{p.serve(resource, p.facts)}}}},
	)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return served{client, config.Host + "/apis/" + p.gv.String() + "/namespaces/default/" + resource + "?dryRun=All"}
}

// create sends an object and returns the causes of its rejection, or else the object.
func (s served) create(t *testing.T, doc map[string]any) (causes []string, object map[string]any) {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusCreated {
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON(body); err != nil {
			t.Fatal(err)
		}
		return nil, u.Object
	}
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil || response.StatusCode != http.StatusUnprocessableEntity {
		return []string{fmt.Sprintf("%d %s", response.StatusCode, body)}, nil
	}
	for _, c := range status.Details.Causes {
		causes = append(causes, fmt.Sprintf("%s %s: %s", c.Type, c.Field, c.Message))
	}
	slices.Sort(causes)
	return causes, nil
}

// reference validates as a server of definitions does.
type reference struct {
	schema   *structuralschema.Structural
	validate func(*unstructured.Unstructured) field.ErrorList
}

func newReference(t *testing.T, crd apiextensionsv1.CustomResourceDefinition) reference {
	t.Helper()
	version := crd.Spec.Versions[0]
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		version.Schema.OpenAPIV3Schema,
		internal,
		nil,
	); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
	strategy := customresource.NewStrategy(nil, true, kind, rules, nil, s, &apiextensions.CustomResourceSubresourceStatus{}, nil, nil)
	return reference{s, func(u *unstructured.Unstructured) field.ErrorList {
		strategy.PrepareForCreate(t.Context(), u)
		return strategy.Validate(t.Context(), u)
	}}
}

// create returns the causes of a document's rejection, and the stored object.
func (r reference) create(t *testing.T, doc map[string]any) (causes []string, object map[string]any) {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	pruning.Prune(u.Object, r.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, r.schema)
	defaulting.Default(u.Object, r.schema)
	for _, e := range r.validate(u) {
		causes = append(causes, fmt.Sprintf("%s %s: %s", string(e.Type), e.Field, e.ErrorBody()))
	}
	slices.Sort(causes)
	return causes, u.Object
}

// mutants returns documents that differ from one in a single value, which breaks a rule of its schema more often than
// not.
func mutants(doc map[string]any, s *apiextensionsv1.JSONSchemaProps) map[string]map[string]any {
	all := map[string]map[string]any{}
	var visit func(value any, s *apiextensionsv1.JSONSchemaProps, path string, set func(root map[string]any, with any))
	visit = func(value any, s *apiextensionsv1.JSONSchemaProps, path string, set func(map[string]any, any)) {
		add := func(what string, with any) {
			root := runtime.DeepCopyJSON(normal(doc))
			set(root, with)
			all[path+" "+what] = root
		}
		switch {
		case s.Type == "string":
			add("of another type", true)
			add("empty", "")
			add("strange", "!annex \u00e9")
			if s.MaxLength != nil {
				add("too long", strings.Repeat("a", int(*s.MaxLength)+1))
			}
		case s.Type == "integer":
			add("of another type", "annex")
			add("zero", int64(0))
			if s.Minimum != nil {
				add("too small", int64(*s.Minimum)-1)
			}
			if s.Maximum != nil {
				add("too great", int64(*s.Maximum)+1)
			}
		case s.Type == "boolean":
			add("of another type", "annex")
			add("false", false)
		case s.Type == "array":
			add("of another type", "annex")
			add("without elements", []any{})
			list, _ := value.([]any)
			if len(list) == 0 || s.Items == nil || s.Items.Schema == nil {
				return
			}
			add("twice", append(slices.Clone(list), list...))
			for i := range list {
				visit(list[i], s.Items.Schema, fmt.Sprintf("%s[%d]", path, i), func(root map[string]any, with any) {
					copied := slices.Clone(list)
					copied[i] = with
					set(root, runtime.DeepCopyJSONValue(copied))
				})
			}
		case s.Type == "object":
			if path != "" {
				add("of another type", []any{})
			}
			object, _ := value.(map[string]any)
			for name, inner := range object {
				if path == "" && name != "spec" {
					continue
				}
				property, ok := s.Properties[name]
				if !ok {
					continue
				}
				with := func(root map[string]any, change func(map[string]any)) {
					copied := runtime.DeepCopyJSON(object)
					change(copied)
					if path == "" {
						for key, v := range copied {
							root[key] = v
						}
						if _, still := copied[name]; !still {
							delete(root, name)
						}
						return
					}
					set(root, copied)
				}
				root := runtime.DeepCopyJSON(normal(doc))
				with(root, func(o map[string]any) { delete(o, name) })
				all[path+"."+name+" missing"] = root
				visit(inner, &property, path+"."+name, func(root map[string]any, value any) {
					with(root, func(o map[string]any) { o[name] = value })
				})
			}
		}
	}
	visit(normal(doc), s, "", nil)
	return all
}

// normal converts numbers to Kubernetes' types.
func normal(doc map[string]any) map[string]any {
	var u unstructured.Unstructured
	data, err := json.Marshal(doc)
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		panic(err)
	}
	return u.Object
}
