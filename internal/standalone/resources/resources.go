// Package resources discovers the resources of a server: built-in ones, custom ones, and those of servers behind it.
// Controllers for objects of any kind use it, because the set of kinds changes while a server runs.
package resources

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// Resource is one resource, in the most preferred version that serves it.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Verbs      []string
}

// Can reports whether the resource supports all the verbs.
func (r Resource) Can(verbs ...string) bool {
	return !slices.ContainsFunc(verbs, func(verb string) bool { return !slices.Contains(r.Verbs, verb) })
}

// Set is a snapshot of the resources of a server. It is immutable. The zero value is empty.
type Set struct {
	all    []Resource
	index  map[schema.GroupResource]int    // into all
	kinds  map[schema.GroupVersionKind]int // into all
	groups map[schema.GroupKind][]int
	failed map[schema.GroupVersion]error
}

// All returns every resource once, in the order of discovery. It omits resources whose versions are all in Failed.
// The caller must not modify the result.
func (s *Set) All() []Resource { return s.all }

// Get returns a resource by its name.
func (s *Set) Get(name schema.GroupResource) (Resource, bool) {
	i, ok := s.index[name]
	if !ok {
		return Resource{}, false
	}
	return s.all[i], true
}

// Of returns the resource of a kind. For a version that is no longer served, it uses the other versions of the group
// if they have the same resource for the kind, because the objects are the same.
func (s *Set) Of(kind schema.GroupVersionKind) (Resource, bool) {
	if i, ok := s.kinds[kind]; ok {
		return s.all[i], true
	}
	if all := s.groups[kind.GroupKind()]; len(all) == 1 && s.failed[kind.GroupVersion()] == nil {
		return s.all[all[0]], true
	}
	return Resource{}, false
}

// Content returns the namespaced resources whose objects can be deleted.
func (s *Set) Content() []schema.GroupVersionResource {
	var content []schema.GroupVersionResource
	for _, resource := range s.all {
		if resource.Namespaced && resource.Can("delete") {
			content = append(content, resource.GroupVersionResource)
		}
	}
	return content
}

// Failed returns the versions whose discovery failed.
func (s *Set) Failed() map[schema.GroupVersion]error { return s.failed }

// Err returns nil if the discovery of all groups succeeded, and else a *discovery.ErrGroupDiscoveryFailed.
func (s *Set) Err() error {
	if len(s.failed) == 0 {
		return nil
	}
	return &discovery.ErrGroupDiscoveryFailed{Groups: s.failed}
}

// Client is a discovery client of one server. Its methods may be called concurrently.
type Client struct {
	http *http.Client
	base *url.URL

	mu   sync.Mutex // held during requests
	docs []document // the last responses of /api and /apis
	set  *Set
}

// document is a response of aggregated discovery, with its ETag.
type document struct {
	path, tag string
	groups    []apidiscovery.APIGroupDiscovery
}

// NewClient returns a client of a server with aggregated discovery, which all servers have since Kubernetes 1.30.
func NewClient(config *rest.Config) (*Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client for discovery: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("client for discovery: %w", err)
	}
	return &Client{http: client, base: base, docs: []document{{path: "/api"}, {path: "/apis"}}}, nil
}

// Ask returns the current resources. While nothing changes, it returns the same Set, and costs two small requests.
func (c *Client) Ask(ctx context.Context) (*Set, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.set == nil
	for i := range c.docs {
		fetched, err := c.fetch(ctx, &c.docs[i])
		if err != nil {
			return nil, fmt.Errorf("discovery at %s: %w", c.docs[i].path, err)
		}
		changed = changed || fetched
	}
	if changed {
		c.set = NewSet(slices.Concat(c.docs[0].groups, c.docs[1].groups))
	}
	return c.set, nil
}

// Content returns the resources that may be in a namespace. With an error the result is incomplete: it contains the
// resources of the groups whose discovery succeeded.
func (c *Client) Content(ctx context.Context) ([]schema.GroupVersionResource, error) {
	set, err := c.AskForAll(ctx)
	if err != nil {
		return nil, err
	}
	return set.Content(), set.Err()
}

var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// AskForAll is like Ask, for callers that must not miss a resource. Discovery may not yet show established custom
// resources, for example directly after the start of the server; their versions are in Failed.
func (c *Client) AskForAll(ctx context.Context) (*Set, error) {
	set, err := c.Ask(ctx)
	if err != nil {
		return nil, err
	}
	crds, ok := set.Get(definitions)
	if !ok {
		return set, nil
	}
	path := "/apis/" + crds.GroupVersion().String() + "/" + crds.Resource
	var all metav1.PartialObjectMetadataList
	if err := c.getJSON(ctx, path, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", &all); err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	missing := map[schema.GroupVersion]error{}
	for _, crd := range all.Items {
		if _, shown := set.Get(schema.ParseGroupResource(crd.Name)); shown {
			continue
		}
		versions, err := c.established(ctx, path+"/"+crd.Name)
		if err != nil {
			return nil, fmt.Errorf("custom resource %s: %w", crd.Name, err)
		}
		for _, version := range versions {
			missing[version] = fmt.Errorf("%s is not in discovery yet", crd.Name)
		}
	}
	if len(missing) == 0 {
		return set, nil
	}
	more := *set
	more.failed = maps.Clone(set.failed)
	maps.Copy(more.failed, missing)
	return &more, nil
}

// established returns the versions of a definition whose objects should be served now.
func (c *Client) established(ctx context.Context, path string) ([]schema.GroupVersion, error) {
	var crd struct {
		Spec struct {
			Group    string
			Versions []struct {
				Name   string
				Served bool
			}
		}
		Status struct{ Conditions []metav1.Condition }
	}
	if err := c.getJSON(ctx, path, "application/json", &crd); err != nil {
		return nil, err
	}
	if !meta.IsStatusConditionTrue(crd.Status.Conditions, "Established") {
		return nil, nil
	}
	var versions []schema.GroupVersion
	for _, v := range crd.Spec.Versions {
		if v.Served {
			versions = append(versions, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
		}
	}
	return versions, nil
}

// getJSON decodes the response at a path; not found leaves into empty.
func (c *Client) getJSON(ctx context.Context, path, accept string, into any) error {
	response, err := c.get(ctx, path, http.Header{"Accept": {accept}})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(into)
	case http.StatusNotFound:
		return nil
	default:
		return fmt.Errorf("the server answers %s", response.Status)
	}
}

func (c *Client) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	return c.http.Do(req)
}

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// fetch requests a document, and reports whether it has changed.
func (c *Client) fetch(ctx context.Context, d *document) (changed bool, err error) {
	header := http.Header{"Accept": {aggregated}}
	if d.tag != "" {
		header.Set("If-None-Match", d.tag)
	}
	response, err := c.get(ctx, d.path, header)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotModified && d.tag != "":
		return false, nil
	case response.StatusCode == http.StatusNotFound:
		// The server lacks this part of the API.
		changed = len(d.groups) > 0
		d.tag, d.groups = "", nil
		return changed, nil
	case response.StatusCode != http.StatusOK:
		return false, fmt.Errorf("the server answers %s", response.Status)
	case !strings.Contains(response.Header.Get("Content-Type"), "as=APIGroupDiscoveryList"):
		return false, fmt.Errorf("the server answers with %s, not with aggregated discovery v2", response.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, err
	}
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return false, fmt.Errorf("decode the answer: %w", err)
	}
	d.tag, d.groups = response.Header.Get("ETag"), list.Items
	return true, nil
}

// NewSet returns the set of resources in discovery.
func NewSet(groups []apidiscovery.APIGroupDiscovery) *Set {
	s := &Set{
		index:  map[schema.GroupResource]int{},
		kinds:  map[schema.GroupVersionKind]int{},
		groups: map[schema.GroupKind][]int{},
		failed: map[schema.GroupVersion]error{},
	}
	for _, group := range groups {
		for _, version := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version.Version}
			if version.Freshness == apidiscovery.DiscoveryFreshnessStale {
				s.failed[gv] = fmt.Errorf("stale GroupVersion discovery: %v", gv) // client-go's message
				continue
			}
			for _, r := range version.Resources {
				if r.ResponseKind == nil || r.ResponseKind.Kind == "" {
					continue // it has subresources only
				}
				resource := Resource{gv.WithResource(r.Resource), r.ResponseKind.Kind, r.Scope == apidiscovery.ScopeNamespace, r.Verbs}
				i, known := s.index[resource.GroupResource()]
				if !known {
					i = len(s.all)
					s.index[resource.GroupResource()] = i
					s.all = append(s.all, resource)
				}
				s.add(gv.WithKind(resource.Kind), i)
			}
		}
	}
	return s
}

// add records that a kind belongs to the i-th resource. If several resources of a version have the kind, the first
// readable one counts: the others are resources like reviews, which can only be created.
func (s *Set) add(kind schema.GroupVersionKind, i int) {
	if other, taken := s.kinds[kind]; !taken || !s.all[other].Can("get") && s.all[i].Can("get") {
		s.kinds[kind] = i
	}
	if all := s.groups[kind.GroupKind()]; !slices.Contains(all, i) {
		s.groups[kind.GroupKind()] = append(all, i)
	}
}
