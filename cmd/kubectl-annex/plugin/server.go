package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// server is the discovery of the server in the kubeconfig. It must not be used concurrently.
type server struct {
	config *genericclioptions.ConfigFlags
	groups []string

	known []resource
	// fresh is set if known came from the server itself, and not from the cache on disk.
	fresh bool
	// missing is the reason why some groups are not in known.
	missing error
}

// resource is a resource in the server's preferred version.
type resource struct {
	schema.GroupVersionResource
	kind, singular string
	shortNames     []string
	namespaced     bool
	verbs          []string
	subresources   []subresource
}

// subresource is a subresource of a resource.
type subresource struct {
	name string
	// kind is the kind of the options or, for an action, of the body.
	kind  schema.GroupVersionKind
	verbs []string
	role  role
}

// role is the purpose of a subresource. The roles before action are the names of verbs.
type role string

const (
	roleAttach      role = "attach"
	roleExec        role = "exec"
	roleLogs        role = "logs"
	rolePortForward role = "port-forward"
	roleAction      role = "action"
	roleView        role = "view"
	roleNone        role = ""
)

// options maps suffixes of the kinds of options to roles, which includes the options of pods.
var options = map[string]role{
	"ExecOptions":        roleExec,
	"AttachOptions":      roleAttach,
	"LogOptions":         roleLogs,
	"PortForwardOptions": rolePortForward,
	"ProxyOptions":       roleNone,
}

// roleOf returns the role of a subresource of the kind parent.
func roleOf(s metav1.APIResource, name, parent string) role {
	for kind, role := range options {
		if strings.HasSuffix(s.Kind, kind) {
			return role
		}
	}
	switch {
	case name == "log" && s.Kind == "Pod": // kube-apiserver does not name its options
		return roleLogs
	case slices.Contains(s.Verbs, "create") && !slices.Contains(s.Verbs, "get") && s.Kind != parent:
		return roleAction
	case slices.Equal(s.Verbs, metav1.Verbs{"get"}):
		return roleView
	}
	return roleNone
}

// resources returns the resources of the plugin's groups, in the server's order.
func (s *server) resources() ([]resource, error) {
	if s.known != nil {
		return s.known, nil
	}
	client, err := s.config.ToDiscoveryClient()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServer, err)
	}
	groups, lists, err := client.ServerGroupsAndResources()
	var partial *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partial):
		s.missing = err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errServer, err)
	}
	s.fresh = s.fresh || client.Fresh()
	s.known = preferred(groups, lists, s.groups)
	return s.known, nil
}

// refresh drops the cached discovery. It reports whether the server may return anything new.
func (s *server) refresh() bool {
	if s.fresh {
		return false
	}
	client, err := s.config.ToDiscoveryClient()
	if err != nil {
		return false
	}
	client.Invalidate()
	s.known, s.missing, s.fresh = nil, nil, true
	return true
}

// preferred returns the resources of the groups in only, or of all groups if it is empty. Each resource is in the
// first version that has it; the preferred version comes first.
func preferred(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, only []string) []resource {
	byVersion := map[string]*metav1.APIResourceList{}
	for _, list := range lists {
		byVersion[list.GroupVersion] = list
	}
	all := []resource{}
	for _, group := range groups {
		if len(only) > 0 && !slices.ContainsFunc(only, func(name string) bool { return isGroup(name, group.Name) }) {
			continue
		}
		versions := []string{group.PreferredVersion.GroupVersion}
		for _, version := range group.Versions {
			if version.GroupVersion != group.PreferredVersion.GroupVersion {
				versions = append(versions, version.GroupVersion)
			}
		}
		seen := map[string]bool{}
		for _, version := range versions {
			if list := byVersion[version]; list != nil {
				all = append(all, ofVersion(list, seen)...)
			}
		}
	}
	return all
}

// isGroup reports whether group equals named, or is below the domain behind *.
func isGroup(named, group string) bool {
	domain, below := strings.CutPrefix(named, "*")
	return named == group || below && strings.HasPrefix(domain, ".") && strings.HasSuffix(group, domain)
}

func ofVersion(list *metav1.APIResourceList, seen map[string]bool) []resource {
	gv, err := schema.ParseGroupVersion(list.GroupVersion)
	if err != nil {
		return nil
	}
	var all []resource
	at := map[string]int{}
	for _, r := range list.APIResources {
		if strings.Contains(r.Name, "/") || seen[r.Name] {
			continue
		}
		at[r.Name] = len(all)
		all = append(all, resource{
			GroupVersionResource: gv.WithResource(r.Name),
			kind:                 r.Kind,
			singular:             r.SingularName,
			shortNames:           r.ShortNames,
			namespaced:           r.Namespaced,
			verbs:                r.Verbs,
		})
	}
	for _, r := range list.APIResources {
		parent, name, ok := strings.Cut(r.Name, "/")
		if i, known := at[parent]; ok && known && name != "status" && name != "scale" {
			kind := gv.WithKind(r.Kind)
			if r.Version != "" {
				kind = schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
			}
			all[i].subresources = append(all[i].subresources, subresource{name, kind, r.Verbs, roleOf(r, name, all[i].kind)})
		}
	}
	for name := range at {
		seen[name] = true
	}
	return all
}

// isCalled reports whether a word names the resource: by its plural, singular, kind or a short name, each with or
// without the group behind a dot.
func (r resource) isCalled(word string) bool {
	word = strings.ToLower(word)
	for _, name := range append([]string{r.Resource, r.singular, strings.ToLower(r.kind)}, r.shortNames...) {
		if name == "" {
			continue
		}
		if word == name || r.Group != "" && (word == name+"."+r.Group || word == name+"."+r.Version+"."+r.Group) {
			return true
		}
	}
	return false
}

// full returns the name of the resource with its group.
func (r resource) full() string { return r.GroupResource().String() }

// with returns the subresource with a role, or nil.
func (r resource) with(wanted role) *subresource {
	for i := range r.subresources {
		if r.subresources[i].role == wanted {
			return &r.subresources[i]
		}
	}
	return nil
}

// named returns the action or view with that name, or nil.
func (r resource) named(name string) *subresource {
	for i, s := range r.subresources {
		if s.name == name && (s.role == roleAction || s.role == roleView) {
			return &r.subresources[i]
		}
	}
	return nil
}

// can returns the verbs of the plugin that the resource supports.
func (r resource) can() []string {
	var verbs []string
	for _, wanted := range []role{roleLogs, roleExec, roleAttach, rolePortForward} {
		if r.with(wanted) != nil {
			verbs = append(verbs, string(wanted))
		}
		if wanted == roleExec && r.with(wanted) != nil {
			verbs = append(verbs, "cp")
		}
	}
	for _, s := range r.subresources {
		if s.role == roleAction || s.role == roleView {
			verbs = append(verbs, s.name)
		}
	}
	return verbs
}

// client returns a client for any path, whose errors are API statuses.
func (s *server) client() (*rest.RESTClient, error) {
	config, err := s.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return rest.UnversionedRESTClientFor(config)
}

// object is an object in the command line.
type object struct {
	resource
	namespace, name string
}

func (o object) String() string {
	singular := o.singular
	if singular == "" {
		singular = strings.ToLower(o.kind)
	}
	if o.Group != "" {
		singular += "." + o.Group
	}
	return singular + "/" + o.name
}

// path returns the path of the object, with the words appended.
func (o object) path(words ...string) []string {
	path := []string{"/apis", o.Group, o.Version}
	if o.Group == "" {
		path = []string{"/api", o.Version}
	}
	if o.namespaced {
		path = append(path, "namespaces", o.namespace)
	}
	path = append(path, o.Resource)
	if o.name != "" {
		path = append(path, o.name)
	}
	return append(path, words...)
}

// get reads the object as JSON.
func (s *server) get(ctx context.Context, o object) ([]byte, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	return do(ctx, client.Get().AbsPath(o.path()...).SetHeader("Accept", "application/json"))
}

// do sends a request, and returns the body of the answer, or the server's error.
func do(ctx context.Context, request *rest.Request) ([]byte, error) {
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // Raw does not parse the status in a body with code 500
		return nil, err
	}
	return result.Raw()
}
