package generate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"
	"k8s.io/code-generator/cmd/validation-gen/validators"
	"k8s.io/code-generator/pkg/apidefinitions"
	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
	"github.com/annexapi/annex/internal/base/typo"
)

// validationRequest and validationResponse are the messages exchanged with validation-gen, see validationgen.go.txt.
type validationRequest struct{ Packages, Others []string }

type validationResponse struct {
	Files []struct {
		Package string
		Imports []string
		Body    string
	}
	Problems []string
}

// validations is a run of validation-gen, concurrent with the pass. It parses the packages itself.
type validations struct {
	done   chan struct{}
	cancel context.CancelFunc
	// The fields below are set when done is closed.
	parts    map[string]part
	problems Problems
	err      error
}

// startValidations starts validation-gen if a package has tags for it, and otherwise returns nil.
func (l *packageSet) startValidations(ctx context.Context, m Module, hidden []string, flags string) *validations {
	req := validationRequest{}
	tagged := false
	for _, s := range l.sources {
		req.Packages = append(req.Packages, s.path)
		tagged = tagged || s.hasValidations()
	}
	for _, s := range l.neighbours {
		req.Others = append(req.Others, s.path)
		tagged = tagged || s.hasValidations()
	}
	if !tagged {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	v := &validations{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(v.done)
		resp, err := runValidationGen(ctx, m, req, hidden, flags)
		if err != nil {
			v.err = fmt.Errorf("generate validations: %w", err)
			return
		}
		for _, text := range resp.Problems {
			if p := l.validationProblem(text); !slices.Contains(v.problems, p) {
				v.problems = append(v.problems, p)
			}
		}
		v.parts = map[string]part{}
		for _, f := range resp.Files {
			imports := map[string]struct{}{}
			for _, line := range f.Imports {
				imports[line] = struct{}{}
			}
			p, err := newPart("validations", imports, f.Body)
			if err != nil {
				v.err = err
				return
			}
			p.variables = true
			v.parts[f.Package] = p
		}
	}()
	return v
}

// stop ends validation-gen if it still runs.
func (v *validations) stop() {
	if v != nil {
		v.cancel()
		<-v.done
	}
}

// wait returns the functions by package.
func (v *validations) wait() (map[string]part, error) {
	if v == nil {
		return nil, nil
	}
	<-v.done
	if v.err == nil && len(v.problems) > 0 {
		return nil, v.problems
	}
	return v.parts, v.err
}

// runValidationGen runs validation-gen with the generated files hidden; flags are the user's GOFLAGS.
func runValidationGen(ctx context.Context, m Module, req validationRequest, hidden []string, flags string) (validationResponse, error) {
	program, err := m.validationGen(ctx)
	if err != nil {
		return validationResponse{}, err
	}
	in, err := json.Marshal(req)
	if err != nil {
		return validationResponse{}, err
	}
	overlay, err := overlayWithout(hidden)
	if err != nil {
		return validationResponse{}, err
	}
	defer os.Remove(overlay)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "GOFLAGS="+withOverlay(flags, overlay))
	cmd.Stdin = bytes.NewReader(in)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return validationResponse{}, cmp.Or(ctx.Err(), error(lastWords(stderr.String(), err)))
	}
	var resp validationResponse
	if err := json.Unmarshal(stdout.Bytes(), &resp); err != nil {
		return resp, fmt.Errorf("read the answer of validation-gen: %w", err)
	}
	return resp, nil
}

var tagName = regexp.MustCompile(`\+(k8s:[\w:-]+)`)

// validationTags returns the names of the tags of validation-gen in a line of a comment. Tags may contain others, as in
// a tag +k8s:eachVal=+k8s:minimum=1.
func validationTags(line string) (known, unknown []string) {
	text, ok := commentTag(line)
	if !ok || !strings.HasPrefix(text, "+k8s:") {
		return nil, nil
	}
	for i, m := range tagName.FindAllStringSubmatch(text, -1) {
		switch {
		case validators.IsKnownTag(m[1]):
			known = append(known, m[1])
		case i == 0 && otherTag(m[1]):
			return nil, nil
		default:
			unknown = append(unknown, m[1])
		}
	}
	return known, unknown
}

func commentTag(line string) (string, bool) {
	line = strings.TrimSpace(line)
	line = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(line, "//"), "/*"))
	return line, strings.HasPrefix(line, "+")
}

// otherTags are the k8s tags of other generators. A name of which one of them and a colon are a prefix is a tag, too.
var otherTags = func() []string {
	tags := []string{"k8s:validation", "k8s:supportsSubresource", "k8s:isSubresource", "k8s:conversion-fn", "k8s:deprecated"}
	for _, spec := range []apidefinitions.Spec{
		apidefinitions.Conversion, apidefinitions.Defaulter, apidefinitions.Validation, apidefinitions.PrereleaseLifecycle,
		apidefinitions.Deepcopy, apidefinitions.Register, apidefinitions.OpenAPI, apidefinitions.Protobuf,
		apidefinitions.Client, apidefinitions.ApplyConfiguration, apidefinitions.Informer, apidefinitions.Lister,
	} {
		tags = append(append(tags, spec.ActivationTag, spec.InputTag), spec.AuxTags...)
	}
	return tags
}()

func otherTag(name string) bool {
	return slices.ContainsFunc(otherTags, func(tag string) bool {
		return tag != "" && (name == tag || strings.HasPrefix(name, tag+":"))
	})
}

// eachTagLine calls do with every line of every comment that may have tags.
func (s *source) eachTagLine(do func(group *ast.CommentGroup, at token.Position, line string)) {
	for _, f := range s.files {
		for _, group := range f.Comments {
			for _, c := range group.List {
				at := s.fset.Position(c.Pos())
				for i, line := range strings.Split(c.Text, "\n") {
					if text, ok := commentTag(line); ok {
						here := at
						here.Line += i
						do(group, here, text)
					}
				}
			}
		}
	}
}

func (s *source) hasValidations() bool {
	found := false
	s.eachTagLine(func(_ *ast.CommentGroup, _ token.Position, line string) {
		known, _ := validationTags(line)
		found = found || len(known) > 0
	})
	return found
}

var optionOfTag = regexp.MustCompile(`\+k8s:if(?:Enabled|Disabled)\(\s*(?:option:\s*)?"?([^")\s]+)"?\s*\)`)

// options adds the names of the options on which the package's tags depend.
func (s *source) options(named map[string]bool) {
	s.eachTagLine(func(_ *ast.CommentGroup, _ token.Position, line string) {
		for _, m := range optionOfTag.FindAllStringSubmatch(line, -1) {
			named[m[1]] = true
		}
	})
}

// validationOptions returns the sorted names of the options that the validation of s may use: those in its tags, and
// those in the tags of imported API packages.
func (l *packageSet) validationOptions(s *source) []string {
	named, seen := map[string]bool{}, map[string]bool{}
	var visit func(p *packages.Package)
	visit = func(p *packages.Package) {
		if p == nil || seen[p.PkgPath] {
			return
		}
		seen[p.PkgPath] = true
		if of := cmp.Or(pick(l.sources, p.PkgPath), pick(l.neighbours, p.PkgPath)); of != nil {
			of.options(named)
		}
		for _, imported := range p.Imports {
			visit(imported)
		}
	}
	visit(l.listed[s.path])
	return slices.Sorted(maps.Keys(named))
}

// badTags finds the k8s tags that no generator would read: tags with an unknown name, and validations that are not
// directly above their declaration.
func (s *source) badTags() Problems {
	var problems Problems
	documents := map[*ast.CommentGroup]bool{}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return false
			case *ast.Field:
				documents[n.Doc] = true
			case *ast.TypeSpec:
				documents[n.Doc] = true
			case *ast.ValueSpec:
				documents[n.Doc] = true
			case *ast.GenDecl:
				documents[n.Doc] = n.Tok == token.TYPE || n.Tok == token.CONST
			}
			return true
		})
	}
	names, err := tagNames()
	if err != nil {
		return append(problems, asProblems(err)...)
	}
	s.eachTagLine(func(group *ast.CommentGroup, at token.Position, line string) {
		if name, meant := misspelt(line, names); meant != "" {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
				"unknown marker +%s: did you mean +%s?", name, meant)})
			return
		}
		known, unknown := validationTags(line)
		for _, name := range unknown {
			message := fmt.Sprintf("unknown tag +%s: remove it", name)
			if like := likeliest(name); like != "" {
				message = fmt.Sprintf("unknown tag +%s: did you mean +%s?", name, like)
			}
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: message})
		}
		if len(known) > 0 && !documents[group] {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
				"+%s has no effect here: put it right above a type, a field or a constant, without a blank line between", known[0])})
		}
	})
	return problems
}

// plainTags are tags without a family that this package and the generators read, in addition to the tags of
// controller-tools.
var plainTags = []string{
	"default",
	"enum",
	"groupName",
	"versionName",
	"groupGoName",
	"patchStrategy",
	"patchMergeKey",
	"genclient",
	"protobuf",
}

// tagNames returns the names of all tags that have an effect.
func tagNames() ([]string, error) {
	names, err := schema.MarkerNames()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(
		slices.Concat(names, plainTags, otherTags, validationTagNames()),
		func(name string) bool { return name == "" },
	), nil
}

var anyTag = regexp.MustCompile(`^\+([A-Za-z0-9][\w:-]*)(?:$|[=(])`)

// misspelt returns the name of the tag in a line, and the likely intended tag, if the name differs from one of names
// by a typing mistake. Tags in the families kubebuilder and k8s are left to their own checks.
func misspelt(line string, names []string) (name, meant string) {
	m := anyTag.FindStringSubmatch(line)
	if m == nil {
		return "", ""
	}
	name = m[1]
	family, rest, inFamily := strings.Cut(name, ":")
	switch {
	case slices.Contains(names, name), inFamily && (family == "kubebuilder" || family == "k8s"):
		return name, ""
	case slices.Contains(names, family):
		return name, typo.Nearest(
			name,
			slices.DeleteFunc(slices.Clone(names), func(known string) bool { return !strings.HasPrefix(known, family+":") }),
		)
	}
	if near := typo.Nearest(name, names); near != "" {
		return name, near
	}
	// An argument's name may follow the marker's name.
	if i := strings.LastIndex(name, ":"); i > 0 {
		if near := typo.Nearest(name[:i], names); strings.Contains(near, ":") {
			return name, near + name[i:]
		}
	}
	if near := typo.Nearest(family, []string{"kubebuilder", "genclient"}); inFamily && near != "" {
		return name, near + ":" + rest
	}
	return name, ""
}

// likeliest returns the known tag that is closest to name, or nothing.
func likeliest(name string) string {
	best, most := "", 3
	for _, tag := range slices.Concat(otherTags, validationTagNames()) {
		if tag == "" {
			continue
		}
		if d := typo.Distance(strings.ToLower(name), strings.ToLower(tag)); d < most {
			best, most = tag, d
		}
	}
	return best
}

// validationTagNames returns the tags in validation-gen's registry, which can be initialized only once in a process.
var validationTagNames = sync.OnceValue(func() []string {
	var all []string
	c := &generator.Context{Namers: namer.NameSystems{}, Universe: types.Universe{}}
	for _, doc := range validators.InitGlobalValidator(c, nil).Docs() {
		all = append(all, doc.Tag)
	}
	return all
})

var (
	validationPath = regexp.MustCompile(`(?:^|[\s(])((?:[\w.-]+/)*[\w.-]+?)\.([A-Z]\w*)(?:\.(\w+))?(?:\[\w+\])?(?: \([^()]*\))?: `)
	ofField        = regexp.MustCompile(`^field (\w+): (.*)$`)
	quotedTag      = regexp.MustCompile(`tag "(k8s:\w+)"|\+(k8s:\w+)`)
)

// validationProblem finds the line of the tag that an error of validation-gen is about. Its errors begin with paths,
// from the outer to the inner one: field example.com/apis/v1.Spec.size: tag "k8s:minimum": ...
func (l *packageSet) validationProblem(text string) Problem {
	text = oneLine(text)
	for _, m := range slices.Backward(validationPath.FindAllStringSubmatchIndex(text, -1)) {
		at := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		s := pick(l.sources, at(1))
		if s == nil {
			s = pick(l.neighbours, at(1))
		}
		if s == nil || !s.declares(at(2)) {
			continue
		}
		message := strings.TrimSpace(text[m[1]:])
		if i := strings.Index(message, "; either add this package"); i >= 0 {
			message = message[:i] + "; add +k8s:opaqueType to leave it alone"
		}
		tag := ""
		if found := quotedTag.FindStringSubmatch(message); found != nil {
			tag = found[1] + found[2]
		}
		name := at(2)
		if at(3) != "" {
			name += "." + at(3)
		}
		pos := s.tagPosition(at(2), at(3), tag)
		if m := ofField.FindStringSubmatch(message); m != nil {
			name, message = at(2)+"."+m[1], m[2]
			pos = s.field(at(2), m[1])
		}
		return Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf("validation of %s: %s", name, message)}
	}
	p := Problem{Message: "validation: " + text}
	if len(l.sources) == 1 {
		p.File = l.sources[0].dir
	}
	return p
}

// tagPosition returns the position of a tag of a type, or of the type's field with that JSON name. If the tag is not
// found, it is the position of the field or type.
func (s *source) tagPosition(typeName, jsonName, tag string) token.Position {
	pos := s.declared[typeName]
	look := func(doc *ast.CommentGroup) {
		if doc == nil || tag == "" {
			return
		}
		for _, c := range doc.List {
			if text, ok := commentTag(c.Text); ok && strings.Contains(text, "+"+tag) {
				pos = s.fset.Position(c.Pos())
				return
			}
		}
	}
	t, doc := s.typeSpec(typeName)
	fields := structFields(t)
	if fields == nil || jsonName == "" {
		look(doc)
		return pos
	}
	for _, field := range fields {
		if fieldNamed(field, jsonName) {
			pos = s.fset.Position(field.Pos())
			look(field.Doc)
		}
	}
	return pos
}

var jsonTag = regexp.MustCompile("json:\"([^\",]*)")

// fieldNamed reports whether a field has that JSON name, or, without a JSON name, that Go name.
func fieldNamed(field *ast.Field, name string) bool {
	if field.Tag != nil {
		if m := jsonTag.FindStringSubmatch(field.Tag.Value); m != nil && m[1] != "" {
			return m[1] == name
		}
	}
	for _, id := range field.Names {
		if id.Name == name {
			return true
		}
	}
	return len(field.Names) == 0 && embeddedName(field.Type) == name
}
