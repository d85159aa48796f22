package writes

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// FuzzOperations compares applied operations with upstream's library, except for the order of members and white space.
func FuzzOperations(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a":{"b":"c"},"d":"e"}`, `[{"op":"replace","path":"/a/b","value":"x"},{"op":"remove","path":"/d"}]`},
		{` { "a" : { } } `, `[ { "value" : true , "path" : "/a/b~1c~0" , "op" : "add" } ]`},
		{`{"a":null,"b":[{"c":1}]}`, `[{"op":"replace","path":"/a","value":"x"}]`},
		{`{"b":[{"c":1}]}`, `[{"op":"add","path":"/b/0/c","value":false}]`},
		{`{"a":"b"}`, `[{"op":"test","path":"/a","value":"b"},{"op":"add","path":"/a","value":"\u00e9\n"}]`},
		{`{"\u0061b":"c","a~1":""}`, `[{"op":"remove","path":"/ab"},{"op":"remove","path":"/a~01"}]`},
		{`{"a":{"b":{}}}`, `[{"op":"add","path":"/a/b/c","value":"1"},{"op":"remove","path":"/a/b/c"}]`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, document, patch string) { compareOperations(t, document, patch) })
}

// compareOperations reports whether the operations were applied without the library.
func compareOperations(t *testing.T, document, patch string) bool {
	t.Helper()
	var object map[string]any
	if json.Unmarshal([]byte(document), &object) != nil || object == nil || hasTwice(document) || !json.Valid([]byte(patch)) {
		return false
	}
	quick := quickOperations([]byte(patch))
	if quick == nil {
		return false
	}
	before := strings.Clone(document)
	ours := applyQuickly([]byte(document), quick)
	if ours == nil {
		return false
	}
	if document != before {
		t.Fatalf("the document has become %s", document)
	}
	decoded, err := jsonpatch.DecodePatch([]byte(patch))
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	theirs, err := decoded.Apply([]byte(document))
	if err != nil {
		t.Fatalf("%s, %s: upstream fails with %v, ours is %s", document, patch, err, ours)
	}
	var x, y any
	if err := json.Unmarshal(theirs, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(ours, &y); err != nil {
		t.Fatalf("%s, %s: %v in %s", document, patch, err, ours)
	}
	if !reflect.DeepEqual(x, y) || hasTwice(string(ours)) {
		t.Fatalf("%s, %s: upstream's %s, ours %s", document, patch, theirs, ours)
	}
	return true
}

func TestOperations_randomInput_patchAsUpstream(t *testing.T) {
	t.Parallel()
	many := 50_000
	if testing.Short() {
		many = 2_000
	}
	dice := rand.New(rand.NewPCG(3, 4))
	one := func(of ...string) string { return of[dice.IntN(len(of))] }
	applied := 0
	for range many {
		var operations []string
		for range 1 + dice.IntN(3) {
			path := ""
			for range 1 + dice.IntN(2) {
				path += "/" + one("a", "b", "a", "b", "a", "b", "e~0~1", "", "0", "dé")
			}
			op := one("add", "add", "replace", "replace", "remove", "remove", "test")
			operation := fmt.Sprintf(`{"op":%q,"path":"%s"`, op, path)
			if (op != "remove") != (dice.IntN(20) == 0) {
				operation += `,"value":` + one(`"x"`, `true`, `"x\"}"`, `"é"`, `"y"`, `false`, one(`1`, `null`, `{"a":"b"}`))
			}
			operations = append(operations, operation+"}")
		}
		if compareOperations(t, randomObject(dice, 2), "["+strings.Join(operations, ", ")+"]") {
			applied++
		}
	}
	if applied < many/25 {
		t.Errorf("only %d of %d patches were applied", applied, many)
	}
}

// Upstream has to report something about these patches, or the library decides about them.
func TestQuickOperations_otherForms_areDeclined(t *testing.T) {
	for _, patch := range []string{
		`{}`,
		`[{"op":"copy","path":"/a","from":"/b"}]`,
		`[{"op":"add","path":"/a","value":1}]`,
		`[{"op":"add","path":"/a","value":{"b":"c"}}]`,
		`[{"op":"add","path":"/a","value":null}]`,
		`[{"op":"add","path":"/a"}]`,
		`[{"op":"remove","path":"/a","value":"b"}]`,
		`[{"op":"add","path":"","value":"b"}]`,
		`[{"op":"add","path":"a/b","value":"b"}]`,
		`[{"op":"add","op":"add","path":"/a","value":"b"}]`,
		`[{"op":"add","path":"/a","path":"/a","value":"b"}]`,
		`[{"op":"add","path":"/a","value":"b","value":"b"}]`,
		`[{"op":"add","path":"/a","value":"b","from":""}]`,
		`[{"Op":"add","path":"/a","value":"b"}]`,
		`[{"op":true,"path":"/a","value":"b"}]`,
		`[{"op":"test","path":"/a","value":"\u0062"}]`,
		`["add"]`,
		"[{\"op\":\"add\",\"path\":\"/a\",\"value\":\"\xff\"}]",
		"[" + strings.Repeat(`{"op":"remove","path":"/a"},`, mostQuick) + `{"op":"remove","path":"/a"}]`,
	} {
		if operations := quickOperations([]byte(patch)); operations != nil {
			t.Errorf("%s: %v", patch, operations)
		}
	}
}
