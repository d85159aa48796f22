package yamlsize

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// doubling returns a document in which every line consists of aliases of the line before.
func doubling(lines, aliases int) string {
	text := "a0: &a0 [x]\n"
	for i := 1; i < lines; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), aliases), ","))
	}
	return text
}

func repeated(size, aliases int) string {
	return "a: &a " + strings.Repeat("x", size) + "\nb:\n" + strings.Repeat("- *a\n", aliases)
}

func TestCheck_expansionBeyondLimit(t *testing.T) {
	const limit = 10_000
	for name, text := range map[string]string{
		"a long string":       repeated(1000, 10),
		"lists of lists":      doubling(10, 9),
		"more than counts":    doubling(60, 9),
		"maps":                "a: &a {k: " + strings.Repeat("x", 1000) + "}\nb: [" + strings.Repeat("*a,", 20) + "]",
		"keys":                "? &a " + strings.Repeat("x", 1000) + "\n: 1\nb:\n" + strings.Repeat("- {? *a : 1}\n", 20),
		"merged":              "a: &a {k: " + strings.Repeat("x", 1000) + "}\nb:\n" + strings.Repeat("- <<: *a\n", 20),
		"merged from a list":  "a: &a {k: " + strings.Repeat("x", 1000) + "}\nb:\n- <<: [" + strings.Repeat("*a,", 20) + "]",
		"anchors in anchors":  "a: &a [&b " + strings.Repeat("x", 1000) + ", *b, *b, *b]\nb: [*a, *a, *a]",
		"a name given anew":   "a: &a x\nb: &a " + strings.Repeat("x", 1000) + "\nc: [" + strings.Repeat("*a,", 20) + "]",
		"in flow":             "{a: &a " + strings.Repeat("x", 1000) + ", b: [" + strings.Repeat("*a,", 20) + "]}",
		"before more of them": repeated(1000, 10) + "---\na: b\n",
	} {
		t.Run(name, func(t *testing.T) {
			var tooLarge *TooLargeError
			if err := Check([]byte(text), limit); !errors.As(err, &tooLarge) || tooLarge.Limit != limit {
				t.Errorf("Check(%q) = %v", text, err)
			}
		})
	}
}

func TestCheck_expansionWithinLimit(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":              "",
		"no aliases":           strings.Repeat("- a & b * c\n", 900),
		"without YAML":         "a:\n\t- b: [",
		"aliases":              repeated(100, 90),
		"larger by itself":     "a: 'x & y * z'\nb: " + strings.Repeat("x", 20_000),
		"an anchor without":    "a: &a " + strings.Repeat("x", 9_000) + "\nb: '*a'",
		"a large one not used": "a: &a x\nb: [*a, *a]\nc: " + strings.Repeat("x", 9_000),
		"after the first":      "a: 1\n---\n" + repeated(1000, 100),
	} {
		t.Run(name, func(t *testing.T) {
			if err := Check([]byte(text), 10_000); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheck_limitIsExact(t *testing.T) {
	// The document, a mapping, a, 10 bytes, b, a list, and two aliases of 10 bytes.
	const text = "a: &a 0123456789\nb: [*a, *a]"
	const size = 1 + 1 + 2 + 11 + 2 + 1 + 11 + 11
	if err := Check([]byte(text), size); err != nil {
		t.Errorf("%d bytes: %v", size, err)
	}
	if err := Check([]byte(text), size-1); err == nil {
		t.Errorf("%d bytes are within %d", size, size-1)
	}
}

func TestOf_invalidYAML(t *testing.T) {
	for name, text := range map[string]string{
		"broken":               "a: &a [*a\n\t- b",
		"an anchor in itself":  "a: &a [*a]",
		"an alias of nothing":  "a: &a b\nc: *b",
		"in itself, by others": "a: &a [&b [*a], *b]",
	} {
		t.Run(name, func(t *testing.T) {
			var tooLarge *TooLargeError
			if err := Check([]byte(text), 10_000); err == nil || errors.As(err, &tooLarge) {
				t.Errorf("Check(%q) = %v", text, err)
			}
		})
	}
}

// A document that passes may be expanded: the API machinery's conversion is the oracle. Its JSON is longer than the
// YAML by quotes, escapes and words that YAML omits, but not by aliases.
func FuzzWhatPassesStaysSmall(f *testing.F) {
	for _, text := range []string{
		"", "a: b", repeated(100, 3), repeated(1000, 1000), doubling(4, 3), doubling(10, 9), "a: &a {k: v}\nb: {<<: *a}\nc: {<<: [*a, *a]}",
		"- &a \"\\0\\0\\0\"\n- *a\n- *a\n", "&a ? *a : b", "--- &a x\n--- *a", "\xff\xfe&\x00a\x00 \x00b\x00", "!!binary &a \"gIGC\"\n",
		"- &a ~\n- *a\n- *a",
		"- &a 1e20\n- *a\n- *a",
	} {
		f.Add([]byte(text))
	}
	const limit, longer = 4 << 10, 8
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > limit || Check(data, limit) != nil {
			return
		}
		out, err := yaml.YAMLToJSON(data)
		if err == nil && len(out) > longer*limit {
			t.Errorf("%q passes at %d bytes and becomes %d", data, limit, len(out))
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	text := []byte(repeated(200_000, 5000))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if Check(text, 3<<20) == nil {
			b.Fatal("it passes")
		}
	}
}
