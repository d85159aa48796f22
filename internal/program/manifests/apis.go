package manifests

import (
	"encoding/base64"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/model/define"
)

// firstVersionPriority is the versionPriority of a group's preferred version, as in Kubernetes' own groups.
const firstVersionPriority = 15

// apiServices returns an APIService for each served version of each group.
func (c *Config) apiServices() []runtime.Object {
	var objects []runtime.Object
	for _, g := range c.Definition.Groups {
		versions := servedVersions(g)
		for i, v := range versions {
			spec := map[string]any{
				"group":                g.Name,
				"version":              v,
				"groupPriorityMinimum": int64(c.GroupPriority),
				"versionPriority":      int64(max(1, firstVersionPriority-i)),
				"service":              map[string]any{"name": c.Name, "namespace": c.Namespace, "port": c.servicePort()},
			}
			if c.InsecureSkipTLSVerify {
				spec["insecureSkipTLSVerify"] = true
			}
			if len(c.CABundle) > 0 {
				spec["caBundle"] = base64.StdEncoding.EncodeToString(c.CABundle)
			}
			metadata := map[string]any{"name": v + "." + g.Name, "labels": labels(c.selector())}
			if c.Certificates == CertManager {
				metadata["annotations"] = map[string]any{"cert-manager.io/inject-ca-from": c.Namespace + "/" + c.servingSecret()}
			}
			objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": requirements.APIServices.GroupVersion().String(), "kind": "APIService", "metadata": metadata, "spec": spec,
			}})
		}
	}
	return objects
}

func servedVersions(g define.Group) []string {
	var names []string
	for _, gv := range g.ServedVersions() {
		names = append(names, gv.Version)
	}
	return names
}

func labels(of map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range of {
		all[key] = value
	}
	return all
}
