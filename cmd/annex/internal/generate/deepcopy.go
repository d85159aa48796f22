package generate

import (
	"fmt"

	deepcopyargs "k8s.io/code-generator/cmd/deepcopy-gen/args"
	deepcopygen "k8s.io/code-generator/cmd/deepcopy-gen/generators"
	"k8s.io/gengo/v2/generator"
)

// markDeepcopy adds tags for copying methods of all types, and for DeepCopyObject of all API objects. Existing tags
// of the package take precedence.
func (l *packageSet) markDeepcopy(s *source) {
	pkg := l.universe[s.path]
	if _, found, _ := s.lookup("k8s:deepcopy-gen"); !found {
		pkg.Comments = append(pkg.Comments, "+k8s:deepcopy-gen=package")
	}
	for _, t := range exportedTypes(pkg) {
		if hasTag(t, "kubebuilder:object:generate", "false") && !hasAnyTag(t, "k8s:deepcopy-gen") {
			t.CommentLines = append(t.CommentLines, "+k8s:deepcopy-gen=false")
		}
	}
	for _, t := range findObjects(pkg).all() {
		if !hasTag(t, interfacesTag, objectInterface) {
			t.CommentLines = append(t.CommentLines, "+"+interfacesTag+"="+objectInterface)
		}
	}
}

func (l *packageSet) deepcopy(s *source) ([]*generator.File, error) {
	c, files := l.context(s, deepcopygen.NameSystems(), deepcopygen.DefaultNameSystem())
	args := deepcopyargs.New()
	args.OutputFile = "deepcopy.go"
	if err := c.ExecuteTargets(deepcopygen.GetTargets(c, args)); err != nil {
		return nil, fmt.Errorf("generate deep copies of %s: %w", s.path, err)
	}
	return files.files, nil
}
