package schema

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// finder finds the Go declaration for a path in the schema of a kind.
type finder struct {
	packages *Packages
	parser   *crd.Parser
	kind     crd.TypeIdent
}

// place is the declaration that a path leads to.
type place struct {
	steps  int // number of leading path elements within values; the rest is a keyword
	owners []owner
	in     *loader.Package
	expr   ast.Expr // the declared Go type, in that package
	goType types.Type
}

// owner is a field or a type whose markers apply to a place.
type owner struct {
	pos      token.Pos
	comments []comment
	target   markers.TargetType
}

// place follows a path from the kind. If Go has no declaration for a part of the path, the owners are those of the
// enclosing declaration.
func (f *finder) place(steps []step) place {
	at := place{in: f.kind.Package}
	at.in.NeedTypesInfo()
	if object := at.in.Types.Scope().Lookup(f.kind.Name); object != nil {
		at.goType = object.Type()
	}
	at.enter(f, f.kind.Package, f.kind.Name)
	for _, s := range steps {
		switch s.name {
		case "properties":
			at.property(f, s.key)
		case "items":
			list, _ := at.expr.(*ast.ArrayType)
			at.lose()
			if list != nil {
				at.into(f, at.in, list.Elt)
			}
		case "additionalProperties":
			m, _ := at.expr.(*ast.MapType)
			at.lose()
			if m != nil {
				at.into(f, at.in, m.Value)
			}
		default:
			return at
		}
		at.steps++
	}
	return at
}

// enter goes to a type that a package declares.
func (at *place) enter(f *finder, in *loader.Package, name string) bool {
	f.parser.NeedPackage(in)
	info := f.parser.LookupType(in, name)
	if info == nil || info.RawSpec == nil {
		at.expr = nil
		return false
	}
	comments := commentsAbove(info.RawFile, info.RawDecl.Pos())
	if info.RawDecl.Lparen.IsValid() {
		comments = commentsAbove(info.RawFile, info.RawSpec.Pos())
	}
	at.owners = append(at.owners, owner{info.RawSpec.Pos(), comments, markers.DescribesType})
	at.follow(f, in, info.RawSpec.Type)
	return true
}

func (at *place) lose() { at.expr, at.goType = nil, nil }

// into goes to the type of a value, as written in a package.
func (at *place) into(f *finder, in *loader.Package, expr ast.Expr) {
	in.NeedTypesInfo()
	at.goType = in.TypesInfo.TypeOf(expr)
	at.follow(f, in, expr)
}

// follow goes to a type, as written in a package.
func (at *place) follow(f *finder, in *loader.Package, expr ast.Expr) {
	at.in, at.expr = in, expr
	switch expr := expr.(type) {
	case *ast.ParenExpr:
		at.follow(f, in, expr.X)
	case *ast.StarExpr:
		at.follow(f, in, expr.X)
	case *ast.Ident:
		if !at.enter(f, in, expr.Name) {
			at.in, at.expr = in, expr
		}
	case *ast.SelectorExpr:
		in.NeedTypesInfo()
		object := in.TypesInfo.Uses[expr.Sel]
		if object == nil || object.Pkg() == nil {
			return
		}
		other := in.Imports()[loader.NonVendorPath(object.Pkg().Path())]
		if other == nil || !at.enter(f, other, expr.Sel.Name) {
			at.in, at.expr = in, expr
		}
	}
}

// property goes to a field by its JSON name.
func (at *place) property(f *finder, name string) {
	st, ok := at.expr.(*ast.StructType)
	at.lose()
	if !ok {
		return
	}
	in := at.in
	for _, fields := range st.Fields.List {
		tag, options, _ := strings.Cut(jsonTag(fields), ",")
		embedded := len(fields.Names) == 0
		if tag == name || tag == "" && !embedded && fields.Names[0].Name == name {
			at.owners = append(at.owners, owner{fields.Pos(), commentsAbove(fileOf(in, fields.Pos()), fields.Pos()), markers.DescribesField})
			at.into(f, in, fields.Type)
			return
		}
		if !embedded && !strings.Contains(options, "inline") || tag != "" {
			continue
		}
		inner := place{owners: at.owners}
		inner.follow(f, in, fields.Type)
		before := len(inner.owners)
		inner.property(f, name)
		if len(inner.owners) > before {
			at.owners, at.in, at.expr, at.goType = inner.owners, inner.in, inner.expr, inner.goType
			return
		}
	}
}

func jsonTag(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	return reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
}

func fileOf(in *loader.Package, pos token.Pos) *ast.File {
	i := slices.IndexFunc(in.Syntax, func(f *ast.File) bool { return f.FileStart <= pos && pos < f.FileEnd })
	if i < 0 {
		return nil
	}
	return in.Syntax[i]
}

// commentsAbove returns the markers in the comments between a declaration, or a field, and the preceding one.
func commentsAbove(f *ast.File, pos token.Pos) []comment {
	if f == nil {
		return nil
	}
	from := f.Package
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File:
			return true
		case *ast.CommentGroup:
			return false
		case *ast.FieldList:
			if n.Opening.IsValid() && n.Opening < pos {
				from = max(from, n.Opening)
			}
			return true
		case nil:
			return true
		}
		if n.End() < pos {
			from = max(from, n.End())
		}
		return n.Pos() < pos
	})
	return slices.DeleteFunc(markersIn(f), func(c comment) bool { return c.pos < from || c.pos > pos })
}

// marker returns the position and name of the marker behind a keyword of the place; rule is the rule of a CEL
// validation. Without a marker, the position is that of the field.
func (at *place) marker(p *Packages, keyword, rule string) (where token.Pos, name string) {
	for _, o := range slices.Backward(at.owners) {
		for _, c := range o.comments {
			definition := p.registry.Lookup("+"+c.text, o.target)
			if definition == nil || !setsKeyword(definition.Name, keyword) {
				continue
			}
			if value, err := definition.Parse("+" + c.text); rule != "" && err == nil {
				if v, ok := value.(crdmarkers.XValidation); ok && v.Rule != rule {
					continue
				}
			}
			return c.pos, definition.Name
		}
	}
	return at.owners[len(at.owners)-1].pos, ""
}

// nth returns the position of the nth marker, for repeatable markers of the innermost type.
func (at *place) nth(p *Packages, keyword string, n int) (where token.Pos, name string) {
	o := at.owners[len(at.owners)-1]
	for _, c := range o.comments {
		definition := p.registry.Lookup("+"+c.text, o.target)
		if definition == nil || !strings.HasPrefix(definition.Name, prefix+keyword) {
			continue
		}
		if n--; n < 0 || keyword == "subresource" {
			return c.pos, definition.Name
		}
	}
	return o.pos, ""
}

// setsKeyword reports whether a marker of that name sets the keyword of a schema.
func setsKeyword(name, keyword string) bool {
	last := strings.ToLower(name[strings.LastIndex(name, ":")+1:])
	switch keyword = strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(keyword), "x-kubernetes-"), "-", ""); keyword {
	case "validations":
		return last == "xvalidation" || strings.HasSuffix(last, "oneof")
	case "listmapkeys":
		return last == "listmapkey"
	case "preserveunknownfields":
		return last == keyword || last == "xpreserveunknownfields"
	}
	return keyword != "" && last == keyword
}
