package define

import (
	"slices"
)

// Grant lets those who have a role do something with the objects of a kind, or with one of
// their subresources.
type Grant struct {
	// Role is view, edit or admin, which every server has, or a role of its own.
	Role string
	// Subresource is empty for the objects themselves.
	Subresource string
	Verbs       []string
}

// Roles that every server has, and that others are aggregated into. Those who have edit have
// what view has as well, and those who have admin what edit has.
const (
	ViewRole  = "view"
	EditRole  = "edit"
	AdminRole = "admin"
)

var (
	reads  = []string{"get", "list", "watch"}
	writes = []string{"create", "delete", "deletecollection", "patch", "update"}
)

// Granted returns who may do what with the kind's objects, by DefaultRoles and Grants.
func (k *Kind) Granted() []Grant {
	if !k.DefaultRoles {
		return k.Grants
	}
	verbs := k.Verbs()
	if verbs == nil { // a storage of the user's own
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
