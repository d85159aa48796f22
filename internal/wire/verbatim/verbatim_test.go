package verbatim_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

const head = `{"kind":"K","apiVersion":"g/v",`

// formOf returns a form that encodes any object as given, and items that do not fit as "item".
func formOf(encoded string, skip int) *verbatim.Encoding {
	return verbatim.NewEncoding([]byte(head), skip,
		func(runtime.Object) ([]byte, error) {
			if encoded == "" {
				return nil, errors.New("cannot be encoded")
			}
			return []byte(encoded), nil
		},
		func(_ runtime.Object, whole []byte) ([]byte, error) {
			return fmt.Appendf(nil, "item of %d", len(whole)), nil
		})
}

func TestLook_fits(t *testing.T) {
	object := &metav1.PartialObjectMetadata{}
	for _, c := range []struct{ name, stored, encoded, item string }{
		{"the version in the middle", head + `"metadata":{"name":"a","uid":"u","generation":1}}` + "\n", head +
			`"metadata":{"name":"a","uid":"u","resourceVersion":"7","generation":1}}` + "\n",
			`{"metadata":{"name":"a","uid":"u","resourceVersion":"9","generation":1}}`},
		{"without a line break", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"resourceVersion":"7","uid":"u"}}`,
			`{"metadata":{"resourceVersion":"9","uid":"u"}}`},
		{"the same text in a label before", head + `"metadata":{"annotations":{"a":"\"resourceVersion\":\"7\","},"uid":"u"}}`, head +
			`"metadata":{"annotations":{"a":"\"resourceVersion\":\"7\","},"resourceVersion":"7","uid":"u"}}`,
			`{"metadata":{"annotations":{"a":"\"resourceVersion\":\"7\","},"resourceVersion":"9","uid":"u"}}`},
		{"the version last", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"uid":"u","resourceVersion":"7"}}`, ""},
		{"a field more", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"resourceVersion":"7","uid":"u"},"spec":{}}`, ""},
		{"a field less", head + `"metadata":{"uid":"u"},"spec":{}}`, head + `"metadata":{"resourceVersion":"7","uid":"u"}}`, ""},
		{"another value of the same length", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"resourceVersion":"7","uid":"v"}}`, ""},
		{"another version", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"resourceVersion":"8","uid":"u"}}`, ""},
		{"no version", head + `"metadata":{"uid":"u"}}`, head + `"metadata":{"uid":"u"}}`, ""},
		{"a version in what is skipped", `{"resourceVersion":"7","kind"}`, `{"resourceVersion":"7","resourceVersion":"7","kind"}`, ""},
		{"nothing", "", "{}", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			encoding := formOf(c.encoded, len(head))
			match, whole, err := encoding.Compare(object, []byte(c.stored), 7)
			if err != nil || string(whole) != c.encoded {
				t.Fatalf("encoded as %q: %v", whole, err)
			}
			if !match.BelongsTo(encoding) || match.BelongsTo(formOf(c.encoded, 0)) {
				t.Error("it is not of its form alone")
			}
			if match.Exact() != (c.item != "") {
				t.Fatalf("fits: %t", match.Exact())
			}
			if again, _, _ := encoding.Compare(object, []byte(c.stored), 7); again != match {
				t.Error("what fits alike is not shared")
			}
			if c.item == "" {
				item, err := encoding.Item(object, whole)
				fragment := verbatim.NewFragment(item)
				if want := fmt.Sprintf(
					"item of %d",
					len(c.encoded),
				); err != nil || string(fragment.Append(nil)) != want || fragment.Len() != len(want) ||
					fragment.IsZero() {
					t.Errorf("item %q: %v", item, err)
				}
				return
			}
			fragment := match.Fragment([]byte(c.stored), 9)
			if got := string(fragment.Append([]byte("[")[:1])); got != "["+c.item || fragment.Len() < len(c.item) {
				t.Errorf("item %s, want %s", got, c.item)
			}
			at7 := match.Fragment([]byte(c.stored), 7)
			if string(at7.Whole()) != c.encoded {
				t.Errorf("whole %s, want %s", at7.Whole(), c.encoded)
			}
		})
	}
}

// Items of objects with apiVersion and kind are the complete object without the line break.
func TestPiece_wholeObject(t *testing.T) {
	stored := head + `"metadata":{"uid":"u"}}` + "\n"
	match, _, err := formOf(
		head+`"metadata":{"resourceVersion":"7","uid":"u"}}`+"\n",
		0,
	).Compare(&metav1.PartialObjectMetadata{}, []byte(stored), 7)
	if err != nil || !match.Exact() {
		t.Fatal("it does not fit", err)
	}
	if got := string(match.Fragment([]byte(stored), 12345).Append(nil)); got != head+`"metadata":{"resourceVersion":"12345","uid":"u"}}` {
		t.Error(got)
	}
}

func TestForm_otherVersion(t *testing.T) {
	encoding := formOf("", len(head))
	if encoding.HasPrefix([]byte(`{"kind":"K","apiVersion":"g/v2",`)) || encoding.HasPrefix(nil) || !encoding.HasPrefix([]byte(head+"}")) {
		t.Error("the version is not told by how a value begins")
	}
	if _, _, err := encoding.Compare(&metav1.PartialObjectMetadata{}, []byte(head+"}"), 7); err == nil {
		t.Error("an object that cannot be encoded is no error")
	}
	var none *verbatim.Match
	if none.BelongsTo(encoding) || !(verbatim.Fragment{}).IsZero() {
		t.Error("nothing is something")
	}
}

func TestIdentity_metadata(t *testing.T) {
	for _, c := range []struct{ metadata, name, uid string }{ // an empty name if the beginning of the metadata does not suffice
		{`"metadata":{"name":"a","namespace":"n","uid":"u"VERSION,"generation":1}`, "a", "u"},
		{`"metadata":{"name":"a-1","generateName":"a-","namespace":"n","selfLink":"/a","uid":"u"VERSION,"labels":{"uid":"other"}}`, "a-1", "u"},
		{`"metadata":{"name":"a","uid":"u"VERSION,"managedFields":[{"f:finalizers":{}}]}`, "a", "u"},
		{`"metadata":{"name":"a","uid":"u"VERSION,"finalizers":["example.com/hold"]}`, "", ""},
		{`"metadata":{"name":"a","uid":"u"VERSION},"spec":{"finalizers":["kubernetes"]}`, "", ""},
		{`"metadata":{"name":"a\u003c","uid":"u"VERSION,"generation":1}`, "", ""},
		{`"metadata":{"name":"a"VERSION,"generation":1}`, "", ""},
		{`"metadata":{"uid":"u"VERSION,"generation":1}`, "", ""},
		{`"metadata":{"name":"a"VERSION,"labels":{"uid":"u"}}`, "", ""},
		{`"spec":{"name":"a","uid":"u"},"metadata":{"name":"b","uid":"v"VERSION,"generation":1}`, "", ""},
	} {
		stored := head + strings.Replace(c.metadata, "VERSION", "", 1) + "}\n"
		encoding := formOf(head+strings.Replace(c.metadata, "VERSION", `,"resourceVersion":"7"`, 1)+"}\n", len(head))
		match, _, err := encoding.Compare(&metav1.PartialObjectMetadata{}, []byte(stored), 7)
		if err != nil {
			t.Fatal(err)
		}
		if name, uid, ok := match.Identity([]byte(stored)); ok != (c.name != "") || name != c.name || uid != c.uid {
			t.Errorf("%s: %q, %q, %t", c.metadata, name, uid, ok)
		}
	}
}
