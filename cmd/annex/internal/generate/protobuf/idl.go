package protobuf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var notInName = regexp.MustCompile(`[^A-Za-z0-9_.]`)

// protoPackage returns the protobuf package of a Go package, named as by go-to-protobuf.
func protoPackage(path string) string {
	elements := strings.Split(notInName.ReplaceAllString(strings.ReplaceAll(path, "/", "."), "_"), ".")
	for i, e := range elements {
		if e == "" || e[0] >= '0' && e[0] <= '9' {
			elements[i] = "_" + e
		}
	}
	return strings.Join(elements, ".")
}

// idl returns the .proto file.
func (g *generation) idl(messages []*message) string {
	imports := map[string]bool{}
	for _, m := range messages {
		for _, f := range m.fields {
			if f.elem.from != "" {
				imports[f.elem.from+"/"+FileName] = true
			}
		}
	}
	var b strings.Builder
	b.WriteString(Header + "\n\nsyntax = \"proto2\";\n\n")
	fmt.Fprintf(&b, "package %s;\n\n", protoPackage(g.Path))
	for _, file := range slices.Sorted(maps.Keys(imports)) {
		fmt.Fprintf(&b, "import %q;\n", file)
	}
	if len(imports) > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "option go_package = %q;\n", g.Path)
	for _, m := range messages {
		b.WriteString("\n")
		m.write(&b)
	}
	return b.String()
}

func (m *message) write(b *strings.Builder) {
	writeComment(b, "", m.comments)
	fmt.Fprintf(b, "message %s {\n", m.name)
	var parts []string
	if len(m.options) > 0 {
		var part strings.Builder
		for _, option := range m.options {
			fmt.Fprintf(&part, "  option %s;\n", option)
		}
		parts = append(parts, part.String())
	}
	for _, f := range m.fields {
		var part strings.Builder
		writeComment(&part, "  ", f.comments)
		fmt.Fprintf(&part, "  %s %s = %d;\n", f.declaration(), f.name, f.number)
		parts = append(parts, part.String())
	}
	if r := m.reserved.String(); r != "" {
		parts = append(parts, r)
	}
	b.WriteString(strings.Join(parts, "\n"))
	b.WriteString("}\n")
}

func (r reservations) String() string {
	var b strings.Builder
	var numbers, names []string
	for _, n := range r.ranges {
		s := strconv.Itoa(n.first)
		if n.last > n.first {
			s += " to " + strconv.Itoa(n.last)
		}
		numbers = append(numbers, s)
	}
	for _, n := range r.names {
		names = append(names, strconv.Quote(n))
	}
	if len(numbers) > 0 {
		fmt.Fprintf(&b, "  reserved %s;\n", strings.Join(numbers, ", "))
	}
	if len(names) > 0 {
		fmt.Fprintf(&b, "  reserved %s;\n", strings.Join(names, ", "))
	}
	return b.String()
}

func writeComment(b *strings.Builder, indent string, lines []string) {
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	for _, line := range lines {
		b.WriteString(strings.TrimRight(indent+"// "+line, " \t") + "\n")
	}
}
