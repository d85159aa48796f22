package cluster

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
)

// Requirement is something that a server reads from its cluster or asks of it.
type Requirement struct {
	schema.GroupVersionResource
	// Namespace and Name are those of the one object, if it is one.
	Namespace, Name string
	Verbs           []string
	// For says what it is good for, such as "webhooks".
	For string
	// Binding is what Kubernetes has ready that allows it, empty if there is no such
	// thing.
	Binding string
	// Optional is what the server does without, if it must.
	Optional bool
}

// Where the cluster says how it authenticates.
const (
	configNamespace = "kube-system"
	configName      = "extension-apiserver-authentication"
)

const (
	readerBinding    = "role extension-apiserver-authentication-reader in kube-system"
	delegatorBinding = "ClusterRole system:auth-delegator"
)

var (
	configMaps     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	tokenReviews   = schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"}
	accessReviews  = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}
	namespaces     = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	flowSchemas    = schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"}
	priorityLevels = schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"}
)

// Requirements returns all that a server with these options needs of its cluster. clientCAFile is
// the file given instead of the cluster's authorities of client certificates.
func Requirements(o Options, clientCAFile string) []Requirement {
	var all []Requirement
	if looksUp(o, clientCAFile) {
		all = append(all, Requirement{
			GroupVersionResource: configMaps, Namespace: configNamespace, Name: configName,
			Verbs: []string{"get", "list", "watch"}, For: "who sends requests", Binding: readerBinding, Optional: o.TolerateLookupFailure,
		})
	}
	all = append(all,
		Requirement{GroupVersionResource: tokenReviews, Verbs: []string{"create"}, For: "bearer tokens", Binding: delegatorBinding},
		Requirement{GroupVersionResource: accessReviews, Verbs: []string{"create"}, For: "authorization", Binding: delegatorBinding},
	)
	plugins, _ := Enabled(o)
	if len(plugins) > 0 {
		all = append(all, Requirement{GroupVersionResource: namespaces, Verbs: []string{"get", "list", "watch"}, For: strings.Join(plugins, ", ")})
	}
	for _, plugin := range plugins {
		for _, resource := range admissionResources[plugin] {
			all = append(all, Requirement{
				GroupVersionResource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource},
				Verbs:                []string{"list", "watch"},
				For:                  plugin,
			})
		}
	}
	if !o.DisablePriorityAndFairness {
		for _, resource := range []schema.GroupVersionResource{flowSchemas, priorityLevels} {
			all = append(all, Requirement{GroupVersionResource: resource, Verbs: []string{"list", "watch"}, For: "priority and fairness", Optional: true})
		}
	}
	return all
}

// admissionResources are what the plugins read beside namespaces.
var admissionResources = map[string][]string{
	lifecycle.PluginName:         nil,
	mutating.PluginName:          {"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"},
	mutatingwebhook.PluginName:   {"mutatingwebhookconfigurations"},
	validating.PluginName:        {"validatingadmissionpolicies", "validatingadmissionpolicybindings"},
	validatingwebhook.PluginName: {"validatingwebhookconfigurations"},
}

// looksUp says whether the cluster is asked how it authenticates.
func looksUp(o Options, clientCAFile string) bool {
	return !o.SkipLookup && (clientCAFile == "" || o.RequestHeaderClientCAFile == "")
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

// Path is the URL path of the collection, or where reviews are created.
func (n Requirement) path() string {
	path := "/apis/" + n.Group + "/" + n.Version
	if n.Group == "" {
		path = "/api/" + n.Version
	}
	if n.Namespace != "" {
		path += "/namespaces/" + n.Namespace
	}
	return path + "/" + n.Resource
}

// watched is what is read and watched, in contrast to reviews.
func (n Requirement) watched() bool { return slices.Contains(n.Verbs, "watch") }
