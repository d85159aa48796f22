package generate

import (
	"fmt"
	"strings"

	defaulterargs "k8s.io/code-generator/cmd/defaulter-gen/args"
	defaultergen "k8s.io/code-generator/cmd/defaulter-gen/generators"
	"k8s.io/gengo/v2/generator"
)

const defaulterTag = "k8s:defaulter-gen"

// markDefaults adds tags for defaulting functions of all API objects, unless the package has such tags. A tag of a
// type may be in either of the two comments above it; the generator itself reads only the farther comment.
func (l *packageSet) markDefaults(s *source) {
	pkg := l.universe[s.path]
	for _, t := range exportedTypes(pkg) {
		for _, line := range t.CommentLines {
			if strings.HasPrefix(strings.TrimSpace(line), "+"+defaulterTag+"=") {
				t.SecondClosestCommentLines = append(t.SecondClosestCommentLines, line)
			}
		}
	}
	if _, found, _ := s.lookup(defaulterTag); !found {
		pkg.Comments = append(pkg.Comments, "+"+defaulterTag+"=TypeMeta")
	}
}

// defaults generates SetObjectDefaults functions for objects with defaults at any depth, by a SetDefaults function or
// a +default tag.
func (l *packageSet) defaults(s *source) ([]*generator.File, error) {
	c, files := l.context(s, defaultergen.NameSystems(), defaultergen.DefaultNameSystem())
	args := defaulterargs.New()
	args.OutputFile = "defaults.go"
	if err := c.ExecuteTargets(defaultergen.GetTargets(c, args)); err != nil {
		return nil, fmt.Errorf("generate defaults of %s: %w", s.path, err)
	}
	return files.files, nil
}
