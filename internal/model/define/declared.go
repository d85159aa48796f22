package define

import "reflect"

// Declared holds the kind that a builder of package annex describes. Builders embed it in an unexported field. Only
// functions of this package read the kind, and only this module's packages can call them, so a builder needs no
// exported method for it.
type Declared struct{ kind Kind }

func (d *Declared) declared() *Kind { return &d.kind }

// In returns the kind that a builder describes, not a copy, so that other builders can extend it.
func In(builder interface{ declared() *Kind }) *Kind { return builder.declared() }

// AddGroup adds a group with copies of the builders' kinds, so that a builder can be used for several servers. A nil
// builder becomes a nil kind, which Check reports.
func AddGroup[B any](s *Server, name string, builders []B) {
	group := Group{Name: name}
	for _, b := range builders {
		group.Kinds = append(group.Kinds, built(b))
	}
	s.Groups = append(s.Groups, group)
}

// Complete adds the aliases of kinds to their groups and checks the definition. It must be called once.
func Complete(s *Server) error {
	for _, k := range s.Kinds() {
		if k == nil {
			continue
		}
		for _, also := range k.Aliases {
			s.Add(also)
		}
	}
	return Check(s)
}

// DeclaredSubresource holds the subresource that a builder describes, as Declared holds a kind.
type DeclaredSubresource struct{ subresource Subresource }

func (d *DeclaredSubresource) declaredSubresource() *Subresource { return &d.subresource }

// SubresourceIn returns the subresource that a builder describes, not a copy, so that other builders can extend it.
func SubresourceIn(builder interface{ declaredSubresource() *Subresource }) *Subresource {
	return builder.declaredSubresource()
}

func built(builder any) *Kind {
	d, ok := builder.(interface{ declared() *Kind })
	if v := reflect.ValueOf(builder); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	declared := d.declared()
	kind := *declared
	kind.Versions, kind.Aliases, kind.CustomSubresources = copies(declared.Versions), nil, nil
	for _, s := range declared.CustomSubresources {
		if s != nil {
			subresource := *s
			s = &subresource
		}
		kind.CustomSubresources = append(kind.CustomSubresources, s)
	}
	for _, also := range declared.Aliases {
		shared := kind
		shared.Aliases, shared.AliasOf, shared.StoredAs = nil, &kind, ""
		shared.Group, shared.Resource = also.Group, also.Resource
		shared.Singular, shared.ShortNames, shared.Categories = "", nil, nil
		shared.Versions = copies(also.Versions)
		kind.Aliases = append(kind.Aliases, &shared)
	}
	return &kind
}

func copies(versions []*Version) []*Version {
	var all []*Version
	for _, v := range versions {
		version := *v
		all = append(all, &version)
	}
	return all
}
