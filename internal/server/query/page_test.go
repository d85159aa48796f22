package query

import "testing"

func TestEtagOf(t *testing.T) {
	of := func(version, rest string, items ...string) string {
		var all [][]byte
		for _, item := range items {
			all = append(all, []byte(item))
		}
		return etagOf(all, []byte(`{"totalItems":2,"resourceVersion":"`+version+`"`+rest+`}`), version)
	}
	page := of("7", "", `{"a":1}`, `{"b":2}`)
	if other := of("8", "", `{"a":1}`, `{"b":2}`); other != page {
		t.Errorf("another resource version gives another tag: %s, %s", page, other)
	}
	for what, other := range map[string]string{
		"another item":   of("7", "", `{"a":1}`, `{"b":3}`),
		"another cursor": of("7", `,"cursor":"x"`, `{"a":1}`, `{"b":2}`),
		"joined items":   of("7", "", `{"a":1}{"b":2}`),
		"no items":       of("7", ""),
	} {
		if other == page {
			t.Errorf("%s: the same tag", what)
		}
	}
}

func TestIsKnown(t *testing.T) {
	const tag = `W/"abc"`
	for header, want := range map[string]bool{
		`W/"abc"`: true, `"abc"`: true, `"x", W/"abc"`: true, `*`: true, `"x"`: false, ``: false, `W/"abcd"`: false, `abc`: false,
	} {
		if isKnown([]string{header}, tag) != want {
			t.Errorf("If-None-Match %s: known %t", header, !want)
		}
	}
	if isKnown(nil, tag) {
		t.Error("without If-None-Match a page is known")
	}
}
