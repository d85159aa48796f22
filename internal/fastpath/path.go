package fastpath

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Path is the path of a resource in a version.
type Path struct {
	root       string // the path of the group version, with a slash at the end
	namespaced bool
}

// PathOf returns the path of a resource.
func PathOf(gv schema.GroupVersion, namespaced bool) Path {
	if gv.Group == "" {
		return Path{"/api/" + gv.Version + "/", namespaced}
	}
	return Path{"/apis/" + gv.String() + "/", namespaced}
}

// Matches reports whether the path of a request is spelled as clients spell the path of the resource, or of the object that the request
// names. Other spellings have the same request info, but upstream routes them differently or not at all.
func (p Path) Matches(info *request.RequestInfo) bool {
	length := len(p.root) + len(info.Resource)
	if info.Name != "" {
		length += 1 + len(info.Name)
	}
	if p.namespaced {
		length += len("namespaces/") + len(info.Namespace) + 1
	}
	return p.namespaced == (info.Namespace != "") && length == len(info.Path) && strings.HasPrefix(info.Path, p.root)
}

// Scope returns the scope of a list or a watch in metrics: namespace for one namespace, cluster for all of them and for resources without.
// It is empty if the path is spelled unusually.
func (p Path) Scope(info *request.RequestInfo) string {
	listed := *info
	listed.Name = ""
	switch {
	case p.Matches(&listed) && p.namespaced:
		return "namespace"
	case p.Matches(&listed), p.namespaced && Path{p.root, false}.Matches(&listed):
		return "cluster"
	}
	return ""
}
