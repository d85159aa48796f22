package generate

import (
	"slices"
	"strings"

	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"
)

// objects are the API objects among the types of a package.
type objects struct {
	kinds []*types.Type // they embed TypeMeta and ObjectMeta
	lists []*types.Type // they embed TypeMeta and ListMeta, and have Items
	other []*types.Type // they embed TypeMeta, and are objects by a tag or by a DeepCopyObject of their own
}

func (o objects) all() []*types.Type {
	all := slices.Concat(o.kinds, o.lists, o.other)
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b *types.Type) int { return strings.Compare(a.Name.Name, b.Name.Name) }

const (
	objectInterface = "k8s.io/apimachinery/pkg/runtime.Object"
	interfacesTag   = "k8s:deepcopy-gen:interfaces"
	rootTag         = "kubebuilder:object:root"
)

// exportedTypes returns the package's exported types that are not generic, by name.
func exportedTypes(pkg *types.Package) []*types.Type {
	var all []*types.Type
	for _, t := range pkg.Types {
		// gengo reports the type parameters of structs only; the names of other generic types contain a bracket.
		if t.Name.Package == pkg.Path && !namer.IsPrivateGoName(t.Name.Name) && !strings.Contains(t.Name.Name, "[") && len(t.TypeParams) == 0 {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, byName)
	return all
}

func findObjects(pkg *types.Package) objects {
	var o objects
	for _, t := range exportedTypes(pkg) {
		switch {
		case t.Kind != types.Struct || !embeds(t, "TypeMeta"):
		case embeds(t, "ObjectMeta"):
			o.kinds = append(o.kinds, t)
		case embeds(t, "ListMeta") && slices.ContainsFunc(t.Members, func(m types.Member) bool { return m.Name == "Items" }):
			o.lists = append(o.lists, t)
		case hasTag(t, interfacesTag, objectInterface) || hasTag(t, rootTag, "true") || t.Methods["DeepCopyObject"] != nil:
			o.other = append(o.other, t)
		}
	}
	return o
}

func embeds(t *types.Type, meta string) bool {
	return slices.ContainsFunc(t.Members, func(m types.Member) bool {
		return m.Embedded && m.Type.Name == types.Name{Package: metaPackage, Name: meta}
	})
}

// hasTag reports whether a comment of t has the tag +name=value. The value may be one of several, separated by
// commas.
func hasTag(t *types.Type, name, value string) bool {
	for _, line := range slices.Concat(t.SecondClosestCommentLines, t.CommentLines) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "+"+name+"=")
		if ok && slices.Contains(strings.Split(strings.TrimSpace(rest), ","), value) {
			return true
		}
	}
	return false
}

// hasAnyTag reports whether a comment of t has the tag +name, with any value.
func hasAnyTag(t *types.Type, name string) bool {
	return slices.ContainsFunc(slices.Concat(t.SecondClosestCommentLines, t.CommentLines), func(line string) bool {
		line = strings.TrimSpace(line)
		return line == "+"+name || strings.HasPrefix(line, "+"+name+"=")
	})
}
