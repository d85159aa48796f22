package define

import (
	"slices"
)

// Grant allows a role some verbs on the objects of a kind, or on one of their subresources.
type Grant struct {
	// Role is view, edit or admin, which every server has, or a separate role.
	Role string
	// Subresource is empty for the objects themselves.
	Subresource string
	Verbs       []string
}

// The roles that every server has, and that aggregate other roles. edit includes view, and admin includes edit.
const (
	ViewRole  = "view"
	EditRole  = "edit"
	AdminRole = "admin"
)

var (
	reads  = []string{"get", "list", "watch"}
	writes = []string{"create", "delete", "deletecollection", "patch", "update"}
)

// Granted returns the grants on the kind's objects, from DefaultRoles and Grants.
func (k *Kind) Granted() []Grant {
	if !k.DefaultRoles {
		return k.Grants
	}
	verbs := k.Verbs()
	if verbs == nil { // a custom storage
		verbs = slices.Concat(reads, writes)
	}
	var all []Grant
	grant := func(role, subresource string, wanted []string) {
		served := slices.DeleteFunc(slices.Clone(wanted), func(verb string) bool { return !slices.Contains(verbs, verb) })
		if len(served) > 0 {
			all = append(all, Grant{role, subresource, served})
		}
	}
	grant(ViewRole, "", reads)
	grant(EditRole, "", writes)
	grant(AdminRole, "", writes)
	for _, sub := range k.Subresources() {
		switch sub {
		case "status":
			grant(ViewRole, sub, []string{"get"})
		case "scale":
			grant(ViewRole, sub, []string{"get"})
			grant(EditRole, sub, []string{"patch", "update"})
			grant(AdminRole, sub, []string{"patch", "update"})
		}
	}
	return append(all, k.Grants...)
}
