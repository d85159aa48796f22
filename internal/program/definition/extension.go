package definition

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/upstream"
)

// Extension adds the kinds of another project to a control plane. That project's code has their types, rules and
// endpoints, and the server stores their objects. Module workloads has the only implementation, so that only programs
// that import it link that code.
type Extension interface {
	// Replaces returns built-in kinds of the control plane, by their resources, in whose place the extension serves its
	// own.
	Replaces() []schema.GroupResource
	// Serves reports whether a key of a runtime configuration, such as apps/v1 or api/v1/pods, is about kinds of the
	// extension.
	Serves(key string) bool
	// With returns the extension with the runtime configuration, whose other keys it ignores.
	With(runtimeConfig map[string]bool) (Extension, error)
	// AdmissionPlugins returns the names of the extension's admission plugins. Plugins of on run unless they are disabled,
	// plugins of off only if they are enabled.
	AdmissionPlugins() (on, off []string)
	// Controllers returns the controllers of the extension's kinds. Their environment is the server's. It returns an error if
	// the extension's options select an unknown one.
	Controllers() ([]define.Controller, error)
	// Roles returns the ClusterRoles, ClusterRoleBindings, Roles and RoleBindings that a server with the extension's kinds has
	// beside its own. They belong to the caller. Their namespaces are those that every control plane has. The server creates
	// and reconciles them like its own; where it has a ClusterRole of the same name, that gets the rules that it lacks.
	Roles() []runtime.Object
	// QuotaEvaluators return what an object of their kind uses of a quota. Their UsageStats may fail: the control plane adds
	// up the usage of stored objects itself.
	QuotaEvaluators() []quota.Evaluator
	// Open makes the endpoints of a server that is built but does not run yet.
	Open(Host) (*Extended, error)
}

// Extended is an extension of one server.
type Extended struct {
	Foreign *upstream.Foreign
	// Admission are the enabled plugins. They run before webhooks and policies.
	Admission []admit.Plugin
	// Ready returns the reason why the extension is not ready yet, or nil. It may be called concurrently.
	Ready func() error
	// Run creates initial objects and keeps the extension's state current until the context ends.
	Run func(ctx context.Context)
}

// HeldExtension holds an Extension for the exported type of package controlplane.
type HeldExtension struct{ extension Extension }

func (h *HeldExtension) heldExtension() *HeldExtension { return h }

// HoldExtension puts an extension into a holder.
func HoldExtension(holder interface{ heldExtension() *HeldExtension }, extension Extension) {
	holder.heldExtension().extension = extension
}

// ExtensionOf returns the extension in a holder, nil if HoldExtension has put none there.
func ExtensionOf(holder interface{ heldExtension() *HeldExtension }) Extension {
	return holder.heldExtension().extension
}
