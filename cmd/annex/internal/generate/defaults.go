package generate

import (
	"fmt"

	defaulterargs "k8s.io/code-generator/cmd/defaulter-gen/args"
	defaultergen "k8s.io/code-generator/cmd/defaulter-gen/generators"
	"k8s.io/gengo/v2/generator"
)

// markDefaults asks for defaulting functions of all API objects, unless the
// package says which it wants.
func (l *loaded) markDefaults(s *source) {
	if _, found, _ := s.lookup("k8s:defaulter-gen"); !found {
		pkg := l.universe[s.path]
		pkg.Comments = append(pkg.Comments, "+k8s:defaulter-gen=TypeMeta")
	}
}

// defaults makes SetObjectDefaults functions for the objects that have
// defaults anywhere in them, by a SetDefaults function or a +default tag.
func (l *loaded) defaults(s *source) ([]*generator.File, error) {
	c, files := l.context(s, defaultergen.NameSystems(), defaultergen.DefaultNameSystem())
	args := defaulterargs.New()
	args.OutputFile = "defaults.go"
	if err := c.ExecuteTargets(defaultergen.GetTargets(c, args)); err != nil {
		return nil, fmt.Errorf("generate defaults of %s: %w", s.path, err)
	}
	return files.files, nil
}
