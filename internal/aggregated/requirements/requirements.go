// Package requirements is the single list of the resources that an aggregated server reads from its cluster and of
// the reviews that it requests, and therefore of its permissions there. Serving, describe, the manifests and the
// doctor use it. It links no part of a running server.
package requirements

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
)

// Requirement is a resource that a server reads from its cluster, or a review that it requests.
type Requirement struct {
	schema.GroupVersionResource
	// Namespace and Name are those of a single object; empty otherwise.
	Namespace, Name string
	Verbs           []string
	// For is the purpose, such as "webhooks".
	For string
	// Binding is the predefined role of Kubernetes that grants the permission; zero if there is none.
	Binding Role
	// Optional means that the server can work without it.
	Optional bool
}

// Role is a role that every cluster has: a ClusterRole, or a Role of a namespace.
type Role struct {
	Namespace, Name string
}

// Kind returns the kind of the role; empty for the zero Role.
func (r Role) Kind() string {
	switch {
	case r.Name == "":
		return ""
	case r.Namespace == "":
		return "ClusterRole"
	}
	return "Role"
}

// String formats a role for messages: role NAME in NAMESPACE.
func (r Role) String() string {
	switch r.Kind() {
	case "":
		return ""
	case "Role":
		return "role " + r.Name + " in " + r.Namespace
	}
	return r.Kind() + " " + r.Name
}

var (
	// Reader is the role that may read the authentication configuration of the cluster.
	Reader = Role{"kube-system", "extension-apiserver-authentication-reader"}
	// Delegator is the role that may create token reviews and subject access reviews.
	Delegator = Role{"", "system:auth-delegator"}
)

// The required resources.
var (
	ConfigMaps     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	TokenReviews   = schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"}
	AccessReviews  = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}
	Namespaces     = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	FlowSchemas    = schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"}
	PriorityLevels = schema.GroupVersionResource{
		Group:    "flowcontrol.apiserver.k8s.io",
		Version:  "v1",
		Resource: "prioritylevelconfigurations",
	}
	Secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	Leases      = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	APIServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

// The ConfigMap with the authentication configuration of the cluster.
const (
	AuthenticationNamespace = "kube-system"
	AuthenticationConfigMap = "extension-apiserver-authentication"
)

// AdmissionGroup is the group of policies and webhooks.
const AdmissionGroup = "admissionregistration.k8s.io"

// plugins are the admission plugins that use objects of the cluster, in the order of upstream's aggregated servers,
// with the resources that they read in addition to namespaces.
var plugins = []struct {
	name  string
	reads []string
}{
	{"NamespaceLifecycle", nil},
	{"MutatingAdmissionPolicy", []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}},
	{"MutatingAdmissionWebhook", []string{"mutatingwebhookconfigurations"}},
	{"ValidatingAdmissionPolicy", []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"}},
	{"ValidatingAdmissionWebhook", []string{"validatingwebhookconfigurations"}},
}

// Plugins returns the names of the admission plugins that use objects of the cluster, in the order in which they run.
func Plugins() []string {
	var names []string
	for _, p := range plugins {
		names = append(names, p.name)
	}
	return names
}

// Enabled returns the enabled and the disabled plugins, in order. As in upstream, a plugin that is both enabled and
// disabled by name is enabled.
func Enabled(o config.AdmissionOptions) (in, out []string) {
	for _, name := range Plugins() {
		if slices.Contains(o.DisablePlugins, name) && !slices.Contains(o.EnablePlugins, name) {
			out = append(out, name)
		} else {
			in = append(in, name)
		}
	}
	return in, out
}

// Of returns the requirements for serving of an aggregated server with these options.
func Of(options config.Options) []Requirement {
	var all []Requirement
	o := options.Cluster
	if !o.SkipLookup && (options.ClientCAFile == "" || options.RequestHeader.ClientCAFile == "") {
		all = append(all, Requirement{
			GroupVersionResource: ConfigMaps, Namespace: AuthenticationNamespace, Name: AuthenticationConfigMap,
			Verbs: []string{"get", "list", "watch"}, For: "who sends requests", Binding: Reader, Optional: o.TolerateLookupFailure,
		})
	}
	all = append(all,
		Requirement{GroupVersionResource: TokenReviews, Verbs: []string{"create"}, For: "bearer tokens", Binding: Delegator},
		Requirement{GroupVersionResource: AccessReviews, Verbs: []string{"create"}, For: "authorization", Binding: Delegator},
	)
	in, _ := Enabled(options.Admission)
	if len(in) > 0 {
		all = append(all, Requirement{GroupVersionResource: Namespaces, Verbs: []string{"get", "list", "watch"}, For: strings.Join(in, ", ")})
	}
	for _, plugin := range plugins {
		if !slices.Contains(in, plugin.name) {
			continue
		}
		for _, resource := range plugin.reads {
			all = append(all, Requirement{
				GroupVersionResource: schema.GroupVersionResource{Group: AdmissionGroup, Version: "v1", Resource: resource},
				Verbs:                []string{"list", "watch"},
				For:                  plugin.name,
			})
		}
	}
	if options.PriorityAndFairness == nil || *options.PriorityAndFairness {
		for _, resource := range []schema.GroupVersionResource{FlowSchemas, PriorityLevels} {
			all = append(
				all,
				Requirement{GroupVersionResource: resource, Verbs: []string{"list", "watch"}, For: "priority and fairness", Optional: true},
			)
		}
	}
	return all
}

// String formats a permission for messages: list and watch on flowschemas.GROUP.
func (n Requirement) String() string {
	verbs := n.Verbs[len(n.Verbs)-1]
	if rest := n.Verbs[:len(n.Verbs)-1]; len(rest) > 0 {
		verbs = strings.Join(rest, ", ") + " and " + verbs
	}
	text := verbs + " on " + n.GroupResource().String()
	if n.Name != "" {
		text += " " + n.Name
	}
	if n.Namespace != "" {
		text += " in " + n.Namespace
	}
	return text
}

// ServingSecret returns the name of the Secret and the Lease for the serving certificate of a service.
func ServingSecret(service string) string { return service + "-serving" }

// ControllersLease returns the name of the Lease for the leader election of a server's controllers.
func ControllersLease(server string) string { return server + "-controllers" }

// OfServing returns the additional requirements of a server that issues its serving certificate, for storing it and
// updating the named APIServices.
func OfServing(self config.SelfCertifyOptions, apiServices []string) []Requirement {
	const purpose = "serving certificate"
	secret := ServingSecret(self.ServiceName)
	all := []Requirement{
		{
			GroupVersionResource: Secrets,
			Namespace:            self.ServiceNamespace,
			Name:                 secret,
			Verbs:                []string{"get", "list", "watch", "update", "patch"},
			For:                  purpose,
		},
		{GroupVersionResource: Leases, Namespace: self.ServiceNamespace, Name: secret, Verbs: []string{"get", "update", "patch"}, For: purpose},
	}
	for _, name := range apiServices {
		all = append(all, Requirement{GroupVersionResource: APIServices, Name: name, Verbs: []string{"get", "patch"}, For: purpose})
	}
	if resource, name, ok := strings.Cut(self.Workload, "/"); ok {
		all = append(all, Requirement{
			GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource},
			Namespace:            self.ServiceNamespace, Name: name, Verbs: []string{"get"}, For: purpose,
		})
	}
	return all
}

// OfControllers returns the additional requirement of a server's controllers, for leader election in a namespace.
func OfControllers(server, namespace string) Requirement {
	return Requirement{
		GroupVersionResource: Leases,
		Namespace:            namespace,
		Name:                 ControllersLease(server),
		Verbs:                []string{"get", "update"},
		For:                  "controllers",
	}
}

// Path returns the URL path of the collection, or the path at which reviews are created.
func (n Requirement) Path() string {
	path := "/apis/" + n.Group + "/" + n.Version
	if n.Group == "" {
		path = "/api/" + n.Version
	}
	if n.Namespace != "" {
		path += "/namespaces/" + n.Namespace
	}
	return path + "/" + n.Resource
}

// Watched reports whether the resource is read and watched, in contrast to reviews.
func (n Requirement) Watched() bool { return slices.Contains(n.Verbs, "watch") }
