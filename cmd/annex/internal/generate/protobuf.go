package generate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

const protobufTag = "k8s:protobuf-gen"

// wantsProtobuf sets s.protobuf if the package has the tag for protobuf.
func (s *source) wantsProtobuf() error {
	said, found, err := s.lookup(protobufTag)
	if err != nil {
		return err
	}
	if found && said.text != "package" && said.text != "false" {
		return Problem{File: said.pos.Filename, Line: said.pos.Line, Message: fmt.Sprintf(
			"+%s=%s: use +%s=package for protobuf methods of the package's types", protobufTag, said.text, protobufTag)}
	}
	s.protobuf = said.text == "package"
	return nil
}

// keepComments stores the current comments of the package's types.
func (s *source) keepComments(pkg *types.Package) {
	s.comments = map[string][]string{}
	if s.protobuf {
		for _, t := range exportedTypes(pkg) {
			s.comments[t.Name.Name] = t.CommentLines
		}
	}
}

// protobuf returns the protobuf methods of the package's types, and the .proto file. Both are empty if the package
// has methods of its own.
func (l *packageSet) protobuf(s *source) (part, string, error) {
	file := filepath.Join(s.dir, protobuf.FileName)
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return part{}, "", fmt.Errorf("read field numbers: %w", err)
	}
	result, err := protobuf.Generate(protobuf.Package{
		Path:     s.path,
		Universe: l.universe,
		Elsewhere: func(path string) bool {
			for _, other := range slices.Concat(l.sources, l.neighbours) {
				if other.path == path {
					return other.protobuf
				}
			}
			return false
		},
		Comments: func(typeName string) []string { return s.comments[typeName] },
		Position: s.field,
		Declares: func(typeName, method string) bool { return s.methods[typeName][method] },
		Record:   before, RecordFile: file,
	})
	var problems protobuf.Problems
	if errors.As(err, &problems) {
		var all Problems
		for _, p := range problems {
			all = append(all, Problem{File: p.At.Filename, Line: p.At.Line, Message: p.Message})
		}
		return part{}, "", all
	}
	if err != nil {
		return part{}, "", fmt.Errorf("generate protobuf methods of %s: %w", s.path, err)
	}
	return part{name: "protobuf", body: result.Code, imports: result.Imports}, result.Proto, nil
}

// protobufStub declares, by method, the protobuf methods that will be generated for t.
func protobufStub(method func(recv, name, signature string), t *types.Type) {
	signatures := map[string]string{
		"Reset": "()", "Size": "() int", "Marshal": "() ([]byte, error)", "MarshalTo": "([]byte) (int, error)",
		"MarshalToSizedBuffer": "([]byte) (int, error)", "Unmarshal": "([]byte) error",
	}
	if t.Kind != types.Struct && !hasTag(t, "protobuf.nullable", "true") || hasTag(t, "protobuf", "false") {
		return
	}
	hidden := protobuf.Hidden(t)
	for _, name := range protobuf.Methods {
		if !hidden[name] {
			method("*"+t.Name.Name, name, signatures[name])
		}
	}
}
