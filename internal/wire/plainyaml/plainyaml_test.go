package plainyaml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// want returns the library's output for a list with one item.
func want(item []byte) ([]byte, error) {
	text, err := yaml.JSONToYAML(fmt.Appendf(nil, `{"items":[%s]}`, item))
	return bytes.TrimPrefix(text, []byte("items:\n")), err
}

func compareWithLibrary(t *testing.T, w *Writer, item []byte) {
	t.Helper()
	text, err := want(item)
	got, gotErr := w.AppendItem([]byte("before\n"), item)
	if (err == nil) != (gotErr == nil) {
		t.Fatalf("%s: got the error %v, want %v", item, gotErr, err)
	}
	if err == nil && string(got) != "before\n"+string(text) {
		t.Fatalf("%s: got\n%s\nwant\n%s", item, got, text)
	}
}

func texts() []string {
	return []string{
		"",
		" ",
		"a",
		"a b",
		" a",
		"a ",
		"a:",
		"a: b",
		"a:b",
		"a #b",
		"a#b",
		"#a",
		"-",
		"-a",
		"- a",
		"---",
		"--- a",
		"...",
		".",
		".5",
		".a",
		"?",
		"? a",
		"?a",
		":",
		":a",
		": a",
		"'",
		"it's",
		`"`,
		`a"b`,
		`\`,
		"`",
		"@a",
		"%a",
		"&a",
		"*a",
		"!a",
		"|",
		">",
		"[",
		"]",
		"{}",
		",",
		"<<",
		"<",
		"=",
		"~",
		"~a",
		"y",
		"Y",
		"yes",
		"no",
		"on",
		"off",
		"true",
		"True",
		"false",
		"null",
		"Null",
		"nil",
		"0",
		"1",
		"-1",
		"+1",
		"1.5",
		"1e3",
		"1E+5",
		"1_000",
		"0x1f",
		"0o17",
		"017",
		"0b101",
		"-0b1",
		"08",
		"1.",
		"1.2.3",
		"1-2",
		"12:30:45",
		"1:2",
		"190:20:30.15",
		"10.0.0.1:8080",
		"1a",
		"3f2a-4b",
		"9e5",
		"1e",
		".inf",
		"-.INF",
		".nan",
		"2026-11-26",
		"2026-11-26T14:30:54Z",
		"2026-11-26 14:30:54",
		"2026-1-2",
		"2026-13-45",
		"2026-",
		"2026-11-26t14:30:54.5+01:00",
		"a\nb",
		"a\n",
		"\n",
		"\n\n",
		"a\n\n",
		"\na",
		" a\nb",
		"a \nb",
		"a\n b",
		"a\n\nb\n",
		"a\nb ",
		"a\tb",
		"\t",
		"a\t",
		"a\rb",
		"a\r\nb",
		"é",
		"naïve ☃ text",
		"日本語: テキスト",
		"😀",
		"a\u0085b",
		"a\u2028b",
		"\ufeff",
		"\u00a0",
		"\ufffd",
		"\ufffe",
		"a\x00b",
		"a\x1bb",
		"a\x7fb",
		"\u200b",
		strings.Repeat(
			"word ",
			40,
		) + "end",
		strings.Repeat("word  ", 40) + "end",
		"'" + strings.Repeat(" it's", 40),
		strings.Repeat("wörd ", 40) + "é",
		strings.Repeat("x", 300),
		strings.Repeat("x", 100) + " y",
		"1: " + strings.Repeat("a b ", 50) + "z",
		"true " + strings.Repeat(
			"\"quoted\" ",
			30,
		) + "\t end",
		strings.Repeat("a\t b  ", 40) + "x",
		`{"kind":"Widget","apiVersion":"v1"}` + "\n",
		`{"a":"` + strings.Repeat("b c", 60) + `"}`,
		"<html>&amp;</html>",
		"a\nb\n" + strings.Repeat("long line ", 30),
	}
}

func TestAppendItem_text(t *testing.T) {
	var w Writer
	for _, text := range texts() {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{`%s`, `{"a":%s}`, `{"a":{"b":{"c":%s}}}`, `[%s]`, `[[%s],[]]`, `{"a":[%s,{"b":%[1]s,"z":1}]}`, `{%s:1}`,
			`{"a":%s,"b":%[1]s}`} {
			compareWithLibrary(t, &w, fmt.Appendf(nil, form, quoted))
		}
	}
}

func TestAppendItem_value(t *testing.T) {
	var w Writer
	for _, item := range []string{
		`{}`, `[]`, `null`, `true`, `false`, `{"a":{}}`, `{"a":[]}`, `{"a":null,"b":true}`, `[{}]`, `[[]]`, `[[[]]]`, `[[1,[2,3]],4]`,
		`{"a":[[1],[2]]}`, `[{"a":[{"b":1}]}]`,
		`0`, `-0`, `1`, `-1`, `1.0`, `1.5`, `-0.5`, `1e5`, `1E+21`, `1e21`, `1e-7`, `123456789012345678`, `1234567890123456789`,
		`9223372036854775807`, `9223372036854775808`, `18446744073709551615`, `18446744073709551616`, `-9223372036854775808`,
		`-9223372036854775809`, `0.1`, `100000000000000000000000`, `1e400`, `3.141592653589793`,
		`{"b":1,"a":2}`, `{"a10":1,"a9":2,"a1":3,"a":4}`, `{"B":1,"a":2,"A":3,"_":4,"1":5,"-":6}`, `{"a01":1,"a1":2,"a001":3}`,
		`{"a.b":1,"a-b":2,"ab":3,"a/b":4}`, `{"f:a":{},".":{},"k:{\"a\":1}":{}}`, `{"é":1,"e":2,"z":3}`, `{"10":1,"9":2,"010":3}`,
		`{"a":1,"a":2}`, `{"<<":{"a":1},"b":2}`, `{"` + strings.Repeat("k", 128) + `":1}`, `{"` + strings.Repeat("k", 129) + `":1}`,
		`{"a\nb":1}`, `{"a\tb":1}`, `{"a b":1}`, `{"":1}`, `{"yes":1,"1":2,"null":3}`,
		` { "a" : [ 1 , 2 ] , "b" : { } } `, "{\n\t\"a\": 1\n}", `"\u003ca\u003e \u0026 \/"`, `"\ud83d\ude00"`, `"\b\f\r"`,
		strings.Repeat("[", 150) + strings.Repeat("]", 150), strings.Repeat(`{"a":`, 60) + `"` + strings.Repeat("deep ", 40) + `x"` +
			strings.Repeat("}", 60), strings.Repeat("[", 300) + strings.Repeat("]", 300),
	} {
		compareWithLibrary(t, &w, []byte(item))
	}
}

// value returns a random value of the types that decoded JSON has.
func value(dice *rand.Rand, depth int) any {
	switch kind := dice.IntN(10); {
	case kind < 2 && depth > 0:
		object := map[string]any{}
		for range dice.IntN(6) {
			object[text(dice)] = value(dice, depth-1)
		}
		return object
	case kind < 4 && depth > 0:
		array := []any{}
		for range dice.IntN(4) {
			array = append(array, value(dice, depth-1))
		}
		return array
	case kind == 4:
		return []any{nil, true, false}[dice.IntN(3)]
	case kind == 5:
		return dice.Int64() >> dice.IntN(64)
	case kind == 6:
		return dice.NormFloat64() * float64(dice.IntN(1e9))
	}
	return text(dice)
}

func text(dice *rand.Rand) string {
	if all := texts(); dice.IntN(3) > 0 {
		return all[dice.IntN(len(all))]
	}
	const letters = "aaabcyzABZ0123456789  .:-_#'\"\\\n\t/{}[]é☃~+eExo"
	var s strings.Builder
	runes := []rune(letters)
	for range dice.IntN(12) {
		s.WriteRune(runes[dice.IntN(len(runes))])
	}
	return s.String()
}

// hasOrder reports whether the library's order sorts the keys of each object in one way. Of "7", "10:1" and "1e", each
// is less than another ("1e" < "7" < "10:1" < "1e"), so the library's output depends on the order in which Go iterates
// over the map.
func hasOrder(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		keys := slices.Collect(maps.Keys(value))
		for _, a := range keys {
			for _, b := range keys {
				for _, c := range keys {
					if compare([]byte(a), []byte(b)) < 0 && compare([]byte(b), []byte(c)) < 0 && compare([]byte(a), []byte(c)) >= 0 {
						return false
					}
				}
			}
		}
		for _, v := range value {
			if !hasOrder(v) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(value, func(v any) bool { return !hasOrder(v) })
	}
	return true
}

func TestAppendItem_keysWithoutOrder(t *testing.T) {
	if hasOrder([]any{map[string]any{"7": 1, "10:1": 2, "1e": 3}}) {
		t.Fatal("keys of which each is less than another have an order")
	}
	var w Writer
	got, err := w.AppendItem(nil, []byte(`{"7":1,"10:1":2,"1e":3}`))
	var back []map[string]int
	if err == nil {
		err = yaml.Unmarshal(got, &back)
	}
	if want := []map[string]int{{"7": 1, "10:1": 2, "1e": 3}}; err != nil || !reflect.DeepEqual(back, want) {
		t.Fatalf("got %v, %v from\n%s", back, err, got)
	}
}

func TestAppendItem_random(t *testing.T) {
	seed := rand.Uint64()
	dice := rand.New(rand.NewPCG(seed, 1))
	var w Writer
	for range 3000 {
		v := value(dice, 5)
		if !hasOrder(v) {
			continue
		}
		item, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if compareWithLibrary(t, &w, item); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzAppendItem(f *testing.F) {
	for _, text := range texts() {
		quoted, _ := json.Marshal(map[string]any{"a": text, text: []any{text}})
		f.Add(quoted)
	}
	f.Fuzz(func(t *testing.T, item []byte) {
		var v any
		if json.Unmarshal(item, &v) != nil || !hasOrder(v) {
			t.Skip()
		}
		compareWithLibrary(t, &Writer{}, item)
	})
}

var benchmarked = []byte(
	`{"metadata":{"name":"listed-000001","namespace":"default","uid":"3f2a4b5c-1111-2222-3333-444455556666",` +
		`"resourceVersion":"123456","creationTimestamp":"2026-11-26T14:30:54Z","labels":{"app":"web","tier":"front","group":"group-07"},` +
		`"annotations":{"example.com/sequence":"00000001","example.com/note":"` + strings.Repeat(
		"image replicas template container port env value limit request ",
		20,
	) + `"},` +
		`"managedFields":[{"manager":"lists","operation":"Update","apiVersion":"wardle.example.com/v1alpha1",` +
		`"time":"2026-11-26T14:30:54Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},` +
		`"f:example.com/note":{},"f:example.com/sequence":{}},"f:labels":{".":{},"f:app":{},` +
		`"f:group":{},"f:tier":{}}},"f:spec":{"f:reference":{},"f:referenceType":{}}}}]},` +
		`"spec":{"reference":"another-flunder","referenceType":"Flunder"},"status":{}}`,
)

func BenchmarkAppendItem(b *testing.B) {
	var w Writer
	var to []byte
	for b.Loop() {
		var err error
		if to, err = w.AppendItem(to[:0], benchmarked); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndent(b *testing.B) {
	var to bytes.Buffer
	for b.Loop() {
		to.Reset()
		if err := json.Indent(&to, benchmarked, "    ", "  "); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLibrary(b *testing.B) {
	for b.Loop() {
		if _, err := want(benchmarked); err != nil {
			b.Fatal(err)
		}
	}
}
