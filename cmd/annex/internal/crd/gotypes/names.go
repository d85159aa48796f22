package gotypes

import (
	"go/token"
	"strconv"
	"strings"
	"unicode"
)

// initialisms are in capitals in Go names.
var initialisms = map[string]bool{
	"acl": true, "api": true, "ca": true, "cidr": true, "cpu": true, "dns": true, "html": true, "http": true,
	"https": true, "id": true, "ip": true, "json": true, "rpc": true, "sql": true, "ssh": true, "tcp": true,
	"tls": true, "ttl": true, "udp": true, "ui": true, "uid": true, "uri": true, "url": true, "uuid": true,
	"xml": true, "yaml": true,
}

// goName returns the exported Go name of a JSON field: DNSName for dnsName, XY for x-y.
func goName(field string) string {
	var b strings.Builder
	for _, word := range words(field) {
		if initialisms[strings.ToLower(word)] {
			b.WriteString(strings.ToUpper(word))
			continue
		}
		runes := []rune(word)
		b.WriteRune(unicode.ToUpper(runes[0]))
		b.WriteString(string(runes[1:]))
	}
	if name := b.String(); isExported(name) && !isMethod(name) {
		return name
	}
	return "Field" + b.String()
}

// isMethod reports whether types get a method of this name, so that no field can have it.
func isMethod(name string) bool {
	switch name {
	case "DeepCopy", "DeepCopyInto", "DeepCopyObject", "OpenAPIModelName", "MarshalJSON", "UnmarshalJSON":
		return true
	}
	return false
}

// words splits a name before capitals and at characters that are neither letters nor digits.
func words(name string) []string {
	var all []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			all = append(all, string(word))
		}
		word = nil
	}
	for _, r := range name {
		switch {
		case r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end()
		case unicode.IsUpper(r) && len(word) > 0 && !unicode.IsUpper(word[len(word)-1]):
			end()
			word = append(word, r)
		default:
			word = append(word, r)
		}
	}
	end()
	return all
}

func isExported(name string) bool {
	return token.IsExported(name) && token.IsIdentifier(name)
}

// unique returns the name, or the name with the first free number behind it, and marks the result as taken.
func unique(taken map[string]bool, name string) string {
	candidate := name
	for n := 2; taken[candidate]; n++ {
		candidate = name + strconv.Itoa(n)
	}
	taken[candidate] = true
	return candidate
}
