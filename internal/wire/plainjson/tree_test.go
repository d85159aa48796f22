package plainjson_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	kjson "sigs.k8s.io/json"

	"github.com/annexapi/annex/internal/wire/plainjson"
)

// checkTree compares with the library. It reports whether Trees has decoded the data.
func checkTree(t *testing.T, trees *plainjson.Trees, data string) bool {
	t.Helper()
	got, ok := trees.Decode([]byte(data))
	var want map[string]any
	err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(data), &want)
	if ok && (err != nil || !reflect.DeepEqual(got, want)) {
		t.Errorf("Decode(%s) = %#v, want %#v, %v", data, got, want, err)
	}
	return ok
}

func TestTrees_allForms_areTheLibrarys(t *testing.T) {
	var trees plainjson.Trees
	for _, data := range []string{
		`{}`, ` { } `, `{"a":1,"b":-0,"c":1.0,"d":1e3,"e":9223372036854775807,"f":9223372036854775808,"g":-1.5E-7}`,
		`{"a":[],"b":[1,"x",null,true,false,{}],"c":{"d":{"e":[[[]]]}}}`, `{"a":"\u00e9\n\"","é":"ü","\u0061":"b","a":1}`,
		"{\"a\":\"\xff\"}", `{"a":1,"a":{"b":2}}`, "{\n\t\"a\" : [ 1 , 2 ]\r\n}",
	} {
		for range 2 {
			if !checkTree(t, &trees, data) {
				t.Errorf("%s is left to the library", data)
			}
		}
	}
	for _, data := range []string{
		``, `null`, `[]`, `1`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a":01}`, `{"a":1} x`, `{"a":tru}`, `{"a":"` + "\n" + `"}`, `{"a":[1,]}`,
		`{"a":1e999}`, `{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
	} {
		if checkTree(t, &trees, data) {
			t.Errorf("%.40s is decoded", data)
		}
	}
}

func TestTrees_randomObjects_areTheLibrarys(t *testing.T) {
	var trees plainjson.Trees
	var make func(depth int) any
	make = func(depth int) any {
		switch n := rand.IntN(8 - depth); n {
		case 0:
			return rand.Float64()
		case 1:
			return rand.Int64()
		case 2, 3:
			return strings.Repeat("a<é\"", rand.IntN(3))
		case 4:
			return nil
		case 5:
			list := []any{}
			for range rand.IntN(4) {
				list = append(list, make(depth+1))
			}
			return list
		}
		m := map[string]any{}
		for range rand.IntN(6) {
			m[fmt.Sprint("key", rand.IntN(5000))] = make(depth + 1)
		}
		return m
	}
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			for range 2000 {
				data, err := json.Marshal(map[string]any{"a": make(0), "b": make(0)})
				if err != nil {
					t.Error(err)
					return
				}
				if !checkTree(t, &trees, string(data)) {
					t.Errorf("%s is left to the library", data)
				}
			}
		})
	}
	working.Wait()
}
