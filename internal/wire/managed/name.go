package managed

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// NameOf is the name under which the changes of a request are recorded: the field manager that it gives, which has to be
// one that IsName allows, or what its user agent begins with, as upstream makes a name of that. Letters beyond the longest
// name are left out, from the first one on that does not fit as a whole.
func NameOf(given, userAgent string) string {
	if given != "" {
		return given
	}
	program, _, _ := strings.Cut(userAgent, "/")
	plain := len(program) <= validation.FieldManagerMaxLength
	for i := 0; i < len(program) && plain; i++ {
		plain = program[i] >= ' ' && program[i] <= '~'
	}
	if plain {
		return program
	}
	var name strings.Builder
	for _, r := range program {
		if !unicode.IsPrint(r) {
			continue
		}
		if name.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(r)
	}
	return name.String()
}

// IsName says whether a request may give a name for its field manager. It may give none.
func IsName(name string) bool {
	if len(name) > validation.FieldManagerMaxLength {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
