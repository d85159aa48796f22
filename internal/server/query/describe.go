package query

import (
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/base/ordered"
)

var statusResource = schema.GroupResource{}

// field describes a field in a response.
type field struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Sortable    bool   `json:"sortable"`
	Filterable  bool   `json:"filterable"`
	Text        bool   `json:"text"`
	Indexed     bool   `json:"indexed"`
	Description string `json:"description,omitempty"`
}

// resourceDoc describes a resource in a response. Group and Version are omitted in the response of a version, Fields in
// the response of all resources.
type resourceDoc struct {
	Group      string  `json:"group,omitempty"`
	Version    string  `json:"version,omitempty"`
	Name       string  `json:"name"`
	Kind       string  `json:"kind"`
	Namespaced bool    `json:"namespaced"`
	Watched    bool    `json:"watched"`
	Path       string  `json:"path"`
	Fields     []field `json:"fields,omitempty"`
}

// describe answers with the resources that the caller may list: all of them, or those of a version with their fields.
func (a *API) describe(w http.ResponseWriter, r *http.Request, p place) error {
	if len(r.URL.Query()) > 0 {
		return badParameters(r.URL.Query())
	}
	answer := struct {
		Resources []resourceDoc `json:"resources"`
	}{[]resourceDoc{}}
	known := p == place{}
	for _, resource := range a.config.Resources() {
		if p.nowhere || p.version != "" && (resource.Group != p.group || resource.Version != p.version) {
			continue
		}
		known = true
		may, err := a.mayList(r.Context(), resource)
		if err != nil {
			return err
		}
		if may {
			answer.Resources = append(answer.Resources, a.describeResource(resource, p.version != ""))
		}
	}
	if !known {
		return notFound(fmt.Sprintf("no query API at %s; %s lists the query APIs", r.URL.Path, a.config.Prefix))
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	WriteJSON(w, http.StatusOK, append(body, '\n'))
	return nil
}

func (a *API) describeResource(resource *Resource, withFields bool) resourceDoc {
	group := resource.Group
	if group == "" {
		group = core
	}
	d := resourceDoc{
		Name: resource.Resource, Kind: resource.Kind, Namespaced: resource.Namespaced, Watched: resource.Watched,
		Path: a.config.Prefix + "/" + group + "/" + resource.Version + "/" + resource.Resource,
	}
	if !withFields {
		d.Group, d.Version = group, resource.Version
		return d
	}
	for _, f := range resource.allFields() {
		d.Fields = append(d.Fields, describeField(f, resource.Indexed))
	}
	return d
}

func describeField(f ordered.Field, indexed bool) field {
	return field{
		Name:        f.Name,
		Type:        f.Type,
		Sortable:    f.Sortable,
		Filterable:  true,
		Text:        f.Text,
		Indexed:     f.Sortable && indexed,
		Description: f.Description,
	}
}
