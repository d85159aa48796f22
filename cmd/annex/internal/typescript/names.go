package typescript

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// module names of the schemas that no group version owns.
const (
	metaModule   = "meta"
	sharedModule = "shared"
)

// home is where the type of a schema is declared.
type home struct {
	module string // slash-separated, without extension
	name   string
}

// homes finds a module and a name for each schema. The schemas of a group version have the prefix of its kinds' names;
// those of Kubernetes' own packages are in one module, all others in another.
func (d *document) homes(versions []*groupVersion) map[string]home {
	byPrefix := map[string]string{}
	for _, gv := range versions {
		for _, r := range gv.resources {
			prefix := prefixOf(r.schema)
			if _, taken := byPrefix[prefix]; !taken && !strings.HasPrefix(prefix, "io.k8s.") {
				byPrefix[prefix] = gv.module()
			}
		}
	}
	all := map[string]home{}
	taken := map[home]bool{}
	for _, name := range slices.Sorted(keysOf(d.Components.Schemas)) {
		h := home{module: sharedModule}
		switch module, ok := byPrefix[prefixOf(name)]; {
		case ok:
			h.module = module
		case strings.HasPrefix(name, "io.k8s."):
			h.module = metaModule
		}
		// With as much of the schema's name as makes it unique.
		words := strings.FieldsFunc(name, func(r rune) bool { return r == '.' || r == '/' || r == '~' })
		for n := len(words) - 1; ; n-- {
			h.name = ""
			for _, word := range words[max(n, 0):] {
				h.name += pascal(word)
			}
			if !taken[h] || n <= 0 {
				break
			}
		}
		for n, base := 2, h.name; taken[h]; n++ {
			h.name = fmt.Sprint(base, n)
		}
		taken[h] = true
		all[name] = h
	}
	return all
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func prefixOf(schema string) string {
	if i := strings.LastIndexByte(schema, '.'); i >= 0 {
		return schema[:i+1]
	}
	return ""
}

// module is the name of the group version's module.
func (gv *groupVersion) module() string {
	group := gv.group
	if group == "" {
		group = "core"
	}
	return group + "/" + gv.version
}

var notLetters = regexp.MustCompile(`[^A-Za-z0-9]+`)

// pascal returns a name in Pascal case.
func pascal(name string) string {
	var b strings.Builder
	for _, word := range notLetters.Split(name, -1) {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	text := b.String()
	if text == "" || text[0] >= '0' && text[0] <= '9' {
		return "T" + text
	}
	return text
}

// camel returns a name in camel case.
func camel(name string) string {
	text := pascal(name)
	return strings.ToLower(text[:1]) + text[1:]
}

// groupNames returns the properties of groups: their first word, or more of it where that is not unique.
func groupNames(versions []*groupVersion) map[string]string {
	names := map[string]string{}
	for words := 1; ; words++ {
		count := map[string]map[string]bool{}
		for _, gv := range versions {
			if names[gv.group] != "" {
				continue
			}
			parts := strings.Split(gv.group, ".")
			if gv.group == "" {
				parts = []string{"core"}
			}
			name := camel(strings.Join(parts[:min(words, len(parts))], "-"))
			if count[name] == nil {
				count[name] = map[string]bool{}
			}
			count[name][gv.group] = true
		}
		if len(count) == 0 {
			return names
		}
		for name, groups := range count {
			for group := range groups {
				if len(groups) == 1 && !slices.Contains(valuesOf(names), name) || words > len(strings.Split(group, ".")) {
					names[group] = name
				}
			}
		}
	}
}

func valuesOf(m map[string]string) []string {
	var all []string
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

var identifier = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// property returns the name of a property as TypeScript.
func property(name string) string {
	if identifier.MatchString(name) {
		return name
	}
	return quote(name)
}

// quote returns a string literal.
func quote(text string) string {
	b, _ := json.Marshal(text) // strings always encode
	inner := strings.ReplaceAll(string(b[1:len(b)-1]), `\"`, `"`)
	return "'" + strings.ReplaceAll(inner, "'", `\'`) + "'"
}

// literals returns the strings among the values of an enumeration.
func literals(values []json.RawMessage) []string {
	all := []string{}
	for _, v := range values {
		var text string
		if json.Unmarshal(v, &text) == nil {
			all = append(all, text)
		}
	}
	return all
}

// comment writes a text as a comment. It cannot end the comment.
func comment(b *strings.Builder, indent, text string) {
	text = strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(text, "\r", ""), "*/", "*\\/"))
	switch {
	case text == "":
	case !strings.Contains(text, "\n"):
		fmt.Fprintf(b, "%s/** %s */\n", indent, text)
	default:
		fmt.Fprintf(b, "%s/**\n", indent)
		for line := range strings.SplitSeq(text, "\n") {
			b.WriteString(strings.TrimRight(indent+" * "+line, " ") + "\n")
		}
		fmt.Fprintf(b, "%s */\n", indent)
	}
}
