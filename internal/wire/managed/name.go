package managed

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// NameOf returns the field manager for the changes of a request: the given one, which must satisfy IsName, or else the
// first part of the user agent, as the API machinery derives it. It cuts longer names before the first character that
// does not fit completely.
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

// IsName reports whether a request may specify this field manager. The empty name is allowed.
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
