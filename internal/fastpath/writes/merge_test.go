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

// FuzzMerge compares merged with upstream's library, except for the order of members and white space.
func FuzzMerge(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a":"b","c":{"d":"e","f":"g"}}`, `{"a":"z","c":{"f":null}}`},
		{`{"a":{"b":null},"n":null}`, `{"a":{"b":{"c":null,"d":1}},"n":{"x":null}}`},
		{` { "a" : [ 1 , {"b":"]}\""} ] , "\u0061b" : 1e5 } `, "{\"ab\":{\"c\":{\"d\":null,\"e\":{}}},\n\"a\":\t{}}"},
		{`{}`, `{"a":[{"b":1}],"c":"null"}`},
		{`{"a":{"b":1}}`, `{"a":[1,{"b":{}}]}`},
		{`{"a":1}`, `{"a":null,"b":null}`},
		{`{"a":[]}`, `{"a":[null]}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, document, patch string) { compareMerge(t, document, patch) })
}

func compareMerge(t *testing.T, document, patch string) {
	t.Helper()
	var a, b map[string]any
	if json.Unmarshal([]byte(document), &a) != nil || json.Unmarshal([]byte(patch), &b) != nil || a == nil || b == nil ||
		hasTwice(document) ||
		hasTwice(patch) {
		return
	}
	ours := mergePatch([]byte(document), []byte(patch))
	if ours == nil {
		return
	}
	theirs, err := jsonpatch.MergePatch([]byte(document), []byte(patch))
	if err != nil {
		t.Fatalf("%s, %s: %v", document, patch, err)
	}
	var x, y any
	if err := json.Unmarshal(theirs, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(ours, &y); err != nil {
		t.Fatalf("%s, %s: %v in %s", document, patch, err, ours)
	}
	if !reflect.DeepEqual(x, y) {
		t.Fatalf("%s, %s: upstream's %s, ours %s", document, patch, theirs, ours)
	}
}

// hasTwice reports whether an object, or an object within it, repeats a member.
func hasTwice(text string) bool {
	var look func(value []byte) bool
	look = func(value []byte) bool {
		switch value[0] {
		case '{':
			seen := map[string]bool{}
			for _, m := range members(value) {
				if seen[m.key] || look(m.value) {
					return true
				}
				seen[m.key] = true
			}
		case '[':
			var items []json.RawMessage
			if json.Unmarshal(value, &items) != nil {
				return true
			}
			for _, item := range items {
				if look(item) {
					return true
				}
			}
		}
		return false
	}
	return look([]byte(text)[skipSpace([]byte(text), 0):])
}

func TestMerged_randomInput_mergesAsUpstream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("merges 20,000 random documents")
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		compareMerge(t, randomObject(dice, 3), randomObject(dice, 3))
	}
}

func randomObject(dice *rand.Rand, depth int) string {
	text := "{"
	for i, key := range []string{`"a"`, `"b"`, `"c\n"`, `"dé"`} {
		if dice.IntN(2) == 0 {
			continue
		}
		if len(text) > 1 {
			text += []string{",", " ,\n"}[dice.IntN(2)]
		}
		value := []string{"1", "1.50", `"x\"}"`, "true", "null", "[1,2]", `[{"a":1}]`, "{}"}[dice.IntN(8)]
		if depth > 0 && (i+dice.IntN(3))%2 == 0 {
			value = randomObject(dice, depth-1)
		}
		text += key + []string{":", " : "}[dice.IntN(2)] + value
	}
	return text + "}"
}

// Comparing each member of the document with each member of the patch would exceed the time limit of the tests.
func TestMerged_manyMembers_takesLinearTime(t *testing.T) {
	if testing.Short() {
		t.Skip("merges documents of 200,000 members")
	}
	const many = 200_000
	object := func(value string, from int) string {
		var text strings.Builder
		for i := range many {
			fmt.Fprintf(&text, `,"%08d":%s`, from+i, value)
		}
		return "{" + text.String()[1:] + "}"
	}
	for _, changed := range []int{0, 1, many} { // number of members of the patch that the document lacks
		var got map[string]int
		if err := json.Unmarshal(mergePatch([]byte(object("1", 0)), []byte(object("2", changed))), &got); err != nil {
			t.Fatal(err)
		}
		for i := range many + changed {
			want := 2
			if i < changed && i < many {
				want = 1
			}
			if key := fmt.Sprintf("%08d", i); got[key] != want {
				t.Fatalf("with %d others, %s is %d, want %d", changed, key, got[key], want)
			}
		}
	}
}
