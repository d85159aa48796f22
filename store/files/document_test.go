package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

var thing = &resource{Group: "core", Resource: "things", Prefix: "/things", Namespaced: true, Status: true}

// awkward are strings that YAML readers take for other types, or that are hard to write.
var awkward = []string{
	"",
	" ",
	"a",
	"a b",
	" a",
	"a ",
	"yes",
	"No",
	"on",
	"OFF",
	"y",
	"N",
	"true",
	"False",
	"null",
	"NULL",
	"~",
	"0",
	"007",
	"0x1f",
	"0b1",
	"0o7",
	"1_000",
	"1e3",
	"1.0",
	".5",
	"-1",
	"+1",
	"12:30:45",
	"2001-01-01",
	"2001-01-01T00:00:00Z",
	".inf",
	"-.INF",
	".nan",
	"=",
	"<<",
	"-",
	"- a",
	"? a",
	": a",
	"a: b",
	"a:",
	"a #b",
	"#a",
	"&a",
	"*a",
	"!a",
	"|",
	">",
	"%a",
	"@a",
	"`a`",
	"'",
	"\"",
	"'a'",
	"\"a\"",
	"[",
	"]",
	"{",
	"}",
	",",
	"[a, b]",
	"{a: b}",
	"a\\b",
	"\\",
	"\n",
	"a\n",
	"\na",
	"a\nb",
	"a\nb\n",
	"a\n\nb\n\n",
	" a\nb",
	"a \nb",
	"a\n b\n",
	"a\n\tb",
	"\ta",
	"a\tb",
	"a\r\nb",
	"a\rb",
	"\u0000",
	"\u0007",
	"\u001b[0m",
	"\u0085",
	"\u00a0",
	"\u2028",
	"\ufeff",
	"\ufffd",
	"ä",
	"日本",
	"🙂",
	"---",
	"...",
	"--- a",
	"a\n---\nb",
	"a\n...\nb",
	strings.Repeat("long ", 100),
	strings.Repeat("x", 5000),
	"/path",
	"image:1.2",
	"a=b",
	"$(x)",
	"${x}",
	"!!str a",
}

func stored(t testing.TB, spec any) []byte {
	t.Helper()
	value, err := json.Marshal(
		map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "a", "uid": "u"}, "spec": spec, "status": "s"},
	)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// readers read YAML as this package and other parsers do.
var readers = map[string]func([]byte) (any, error){
	"this package": func(data []byte) (value any, err error) {
		document, err := parse(data)
		if err != nil {
			return nil, err
		}
		return value, json.Unmarshal(document, &value)
	},
	"YAML 1.1": func(data []byte) (value any, err error) { return value, yaml.Unmarshal(data, &value) },
	"YAML 1.2": func(data []byte) (value any, err error) {
		if err := yamlv3.Unmarshal(data, &value); err != nil {
			return nil, err
		}
		again, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		value = nil
		return value, json.Unmarshal(again, &value)
	},
}

// mustReadBack checks that a file, read by any YAML parser, holds the stored object.
func mustReadBack(t *testing.T, value []byte) {
	t.Helper()
	content, ok := render(value, thing)
	if !ok {
		t.Fatalf("cannot be rendered: %s", value)
	}
	var want map[string]any
	if err := json.Unmarshal(value, &want); err != nil {
		t.Fatal(err)
	}
	delete(want, "status")
	want["metadata"] = map[string]any{"name": "a"}
	for name, read := range readers {
		got, err := read(content)
		if err != nil || !reflect.DeepEqual(got, any(want)) {
			t.Errorf("%s: got %v, %v\nof %s\nfrom\n%q", name, got, err, value, content)
		}
	}
	again, ok := render(value, thing)
	if !ok || !bytes.Equal(again, content) {
		t.Error("rendered twice, it is not the same")
	}
}

func TestEncodeYAML_awkwardStrings_roundTrip(t *testing.T) {
	t.Parallel()
	for _, s := range awkward {
		mustReadBack(t, stored(t, s))
		mustReadBack(t, stored(t, []string{s, s}))
		if s != "<<" { // YAML 1.1 merges that key
			mustReadBack(t, stored(t, map[string]any{s: s, "other": map[string]string{s: "x"}}))
		}
	}
}

func TestEncodeYAML_randomObjects_roundTrip(t *testing.T) {
	t.Parallel()
	rng := storetest.Seeded(t)
	var value func(depth int) any
	value = func(depth int) any {
		switch n := rng.IntN(9); {
		case n < 2 && depth > 0:
			m := map[string]any{}
			for range rng.IntN(4) {
				m["k"+awkward[rng.IntN(len(awkward))]] = value(depth - 1)
			}
			return m
		case n < 4 && depth > 0:
			list := []any{}
			for range rng.IntN(4) {
				list = append(list, value(depth-1))
			}
			return list
		case n == 4:
			return rng.IntN(2) == 0
		case n == 5:
			return rng.Int64N(1<<53) - 1<<52
		case n == 6:
			return rng.NormFloat64()
		case n == 7:
			return nil
		}
		var b strings.Builder
		for range 1 + rng.IntN(3) {
			b.WriteString(awkward[rng.IntN(len(awkward))])
		}
		return b.String()
	}
	for range storetest.Trials(t, "ANNEX_OBJECTS", 2000) {
		mustReadBack(t, stored(t, value(4)))
		if t.Failed() {
			return
		}
	}
}

func FuzzRender(f *testing.F) {
	for _, s := range awkward {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "")
		mustReadBack(t, stored(t, []string{s}))
	})
}

func TestEncodeYAML_orderOfFields(t *testing.T) {
	t.Parallel()
	content, ok := render(
		[]byte(`{"kind":"Thing","spec":{"zebra":1,"apple":[]},"metadata":{"uid":"u","finalizers":["f"],"annotations":{"b":"2"},"labels":{},`+
			`"namespace":"ns","name":"a","managedFields":[{"manager":"x"}],"resourceVersion":"4"},"apiVersion":"v1","status":{"x":1},"data":null}`),
		thing,
	)
	want := "apiVersion: v1\nkind: Thing\nmetadata:\n  name: a\n  namespace: ns\n  labels: {}\n  annotations:\n    b: \"2\"\n  " +
		"finalizers:\n    - f\nspec:\n  zebra: 1\n  apple: []\ndata: null\n"
	if !ok || string(content) != want {
		t.Errorf("got %v:\n%s\nwant:\n%s", ok, content, want)
	}
	for _, value := range []string{"", "one", "[]", "null", `"a"`, "{", `{"a":1} x`, `{"metadata":1}`, "k8s:enc:aescbc:v1:key1:x",
		"k8s\x00\n"} {
		if content, ok := render([]byte(value), thing); ok {
			t.Errorf("%q was rendered:\n%s", value, content)
		}
	}
}

func TestParse_rejectedDocuments(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'l'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 8), c-1)
	}
	for data, want := range map[string]string{
		"":                  "empty",
		"---\n---\n":        "empty",
		"a: 1\n---\nb: 2\n": "more than one document",
		"a: 1\na: 2\n":      "already set",
		"- a\n":             "not an object",
		"null\n":            "",
		"a: [\n":            "not YAML",
		"a: \"\xff\"\n":     "not UTF-8",
		bomb:                "larger than 3 MiB after the expansion of its aliases",
		// 204 KB that the reader expanded to 2.5 GB.
		"a: &a " + strings.Repeat("x", 200_000) + "\nb: [" + strings.Repeat("*a, ", 1000) + "*a]\n": "larger than 3 MiB after the " +
			"expansion of its aliases",
		"a: &a\n  b: *a\n":          "not YAML",
		strings.Repeat("[", 100000): "not YAML",
	} {
		_, err := parse([]byte(data))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: got %v", data, err)
		}
	}
	for _, data := range []string{"---\na: 1\n", "# c\n---\na: 1\n---\n", "{\"a\": 1}", "a: &x 1\nb: *x\n", "\ufeffa: 1\n"} {
		if _, err := parse([]byte(data)); err != nil {
			t.Errorf("%q: %v", data, err)
		}
	}
}

func TestFileName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 253)
	for name, want := range map[string]string{
		"a":            "a",
		"a.b-c_d":      "a.b-c_d",
		"system:admin": "system%3Aadmin",
		"A":            "%41",
		".hidden":      "%2Ehidden",
		"..":           "%2E%2E",
		".":            "%2E",
		"_cluster":     "%5Fcluster",
		"a.":           "a%2E",
		"con":          "%63on",
		"con.a":        "%63on.a",
		"console":      "console",
		"com1":         "%63om1",
		"com":          "com",
		"a b":          "a%20b",
		"a/b":          "a%2Fb",
		"a\\b":         "a%5Cb",
		"a%b":          "a%25b",
		"ä":            "%C3%A4",
		"a\x00":        "a%00",
		"a.record":     "a%2Erecord",
		long:           long[:166] + "%~" + "",
	} {
		got := fileName(name)
		if got != want && !(len(name) > 200 && strings.HasPrefix(got, want) && len(got) == 200) {
			t.Errorf("%.40q is %q, want %q", name, got, want)
		}
	}
	if fileName(long) == fileName(long[:252]+"b") {
		t.Error("two long names have one file")
	}
	seen := map[string]string{}
	rng := storetest.Seeded(t)
	for range 20000 {
		name := make([]byte, 1+rng.IntN(6))
		for i := range name {
			name[i] = []byte("aAb.%_:~0F/\\ ")[rng.IntN(13)]
		}
		encoded := fileName(string(name))
		if other, ok := seen[encoded]; ok && other != string(name) {
			t.Fatalf("%q and %q have the file %s", other, name, encoded)
		}
		seen[encoded] = string(name)
		if strings.ContainsAny(encoded, `/\: `) || strings.HasPrefix(encoded, ".") ||
			strings.ToLower(encoded) != encoded && !strings.Contains(encoded, "%") {
			t.Fatalf("%q has the file %q", name, encoded)
		}
	}
}

func TestLayout_placesOfKeys(t *testing.T) {
	t.Parallel()
	l, err := newLayout([]driver.Resource{
		{Group: "g", Resource: "things", Prefix: "/g/things", Namespaced: true},
		{Group: "core", Resource: "nodes", Prefix: "/nodes"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"/g/things/ns/a":     "g/things/ns/a",
		"/g/things/ns/../..": "",
		"/g/things/../../a":  "",
		"/g/things/../a":     "g/things/%2E%2E/a",
		"/g/things/ns/..":    "g/things/ns/%2E%2E",
		"/g/things/ns":       "",
		"/g/things/ns/":      "",
		"/g/things//a":       "",
		"/g/thingsns/a":      "",
		"/nodes/a":           "core/nodes/_cluster/a",
		"/nodes/a/b":         "",
		"/nodes":             "",
		"/other/a":           "",
		"":                   "",
	} {
		got, ok := l.place(key)
		if ok != (want != "") || got.stem != want {
			t.Errorf("%q is at %q (%v), want %q", key, got.stem, ok, want)
		}
	}
	for _, resources := range [][]driver.Resource{
		{{Resource: "things", Prefix: "things"}},
		{{Resource: "things", Prefix: "/things/"}},
		{{Prefix: "/things"}},
		{{Group: "..", Resource: "things", Prefix: "/things"}},
		{{Group: "/", Resource: "things", Prefix: "/things"}},
		{{Resource: ".annex", Prefix: "/things"}},
		{{Resource: "a", Prefix: "/a"}, {Group: "a", Resource: "b", Prefix: "/b"}},
		{{Resource: "a", Prefix: "/a"}, {Resource: "b", Prefix: "/a/b"}},
	} {
		if _, err := newLayout(resources); err == nil {
			t.Errorf("%v is taken", resources)
		}
	}
}

func TestOpen_newerFormat_isRejected(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	j := &Journal{root: root, files: disk{root}}
	if err := j.mkdir(tempDir); err != nil {
		t.Fatal(err)
	}
	if err := j.setFormat(); err != nil {
		t.Fatal(err)
	}
	if version, err := j.format(); err != nil || version != formatVersion {
		t.Errorf("format %d, %v", version, err)
	}
	state := j.path(statePath)
	if err := os.WriteFile(state, seal(stateMagic, formatVersion+1, []byte("{}")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, Options{}); err == nil || !strings.Contains(err.Error(), "use a newer program") {
		t.Errorf("got %v", err)
	}
	for _, data := range []string{"", "annex-state", "annex-state 2 0 00000001\n", "annex-state 0 0 00000000\n",
		"annex-record 2 0 00000000\n"} {
		if err := os.WriteFile(state, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(root, Options{}); !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), state) {
			t.Errorf("%q: got %v", data, err)
		}
	}
}

// render returns the object file for a stored value. ok is false if people cannot read the value.
func render(value []byte, r *resource) ([]byte, bool) {
	shown, _, ok := visible(value, r.Status)
	if !ok {
		return nil, false
	}
	text, err := encodeYAML(shown)
	return text, err == nil
}
