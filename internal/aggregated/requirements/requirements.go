// Package requirements is the one list of what an aggregated server reads from its cluster and
// asks of it, and so of what it has to be permitted there. Serving, describe, the manifests and
// the doctor read it. It links nothing of a server.
package requirements

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
)

// Requirement is something that a server reads from its cluster or asks of it.
type Requirement struct {
	schema.GroupVersionResource
	// Namespace and Name are those of the one object, if it is one.
	Namespace, Name string
	Verbs           []string
	// For says what it is good for, such as "webhooks".
	For string
	// Binding is the role that Kubernetes has ready that allows it, zero if there is none.
	Binding Role
	// Optional is what the server does without, if it must.
	Optional bool
}

// Role is one that every cluster has: a ClusterRole, or a Role of a namespace.
type Role struct {
	Namespace, Name string
}

// Kind is the role's, empty for the zero Role.
func (r Role) Kind() string {
	switch {
	case r.Name == "":
		return ""
	case r.Namespace == "":
		return "ClusterRole"
	}
	return "Role"
}

// String is a role as people say it: role NAME in NAMESPACE.
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
	// Reader is the role that may read how the cluster authenticates.
	Reader = Role{"kube-system", "extension-apiserver-authentication-reader"}
	// Delegator is the role that may ask who callers are and what they may do.
	Delegator = Role{"", "system:auth-delegator"}
)

// What is required.
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

// Where the cluster says how it authenticates.
const (
	AuthenticationNamespace = "kube-system"
	AuthenticationConfigMap = "extension-apiserver-authentication"
)

// AdmissionGroup is that of the policies and webhooks.
const AdmissionGroup = "admissionregistration.k8s.io"

// plugins are the admission plugins that take the cluster's objects, in the order in which
// upstream's aggregated servers run them, with what they read beside namespaces.
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

// Plugins are the names of the admission plugins that take the cluster's objects, in the order
// in which they run.
func Plugins() []string {
	var names []string
	for _, p := range plugins {
		names = append(names, p.name)
	}
	return names
}

// Enabled returns the plugins that the options leave in, in order, and those that they
// leave out. As upstream has it, one that is enabled by name is not left out.
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

// Of returns what an aggregated server with these options requires of its cluster to serve.
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

// String is a permission as people say it: list and watch on flowschemas.GROUP.
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

// ServingSecret names the Secret, and the Lease, that keep the serving certificate of a
// service.
func ServingSecret(service string) string { return service + "-serving" }

// ControllersLease names the Lease by which a server's controllers elect a leader.
func ControllersLease(server string) string { return server + "-controllers" }

// OfServing returns what a server that makes its serving certificate requires besides, to keep
// it and the named APIServices.
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

// OfControllers returns what the controllers of a server require besides, to elect a leader in
// a namespace.
func OfControllers(server, namespace string) Requirement {
	return Requirement{
		GroupVersionResource: Leases,
		Namespace:            namespace,
		Name:                 ControllersLease(server),
		Verbs:                []string{"get", "update"},
		For:                  "controllers",
	}
}

// Path is the URL path of the collection, or where reviews are created.
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

// Watched is what is read and watched, in contrast to reviews.
func (n Requirement) Watched() bool { return slices.Contains(n.Verbs, "watch") }
