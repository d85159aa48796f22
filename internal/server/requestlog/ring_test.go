package requestlog

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func entry(i int) *Entry {
	return &Entry{
		Time: time.Unix(1, int64(i)), Duration: time.Millisecond, User: "ada", Verb: "get",
		Resource: "pizzas", Group: "shop.example.com", Version: "v1",
		Namespace: "default", Name: fmt.Sprint("p", i), URI: "/apis/shop.example.com/v1/namespaces/default/pizzas/p", Code: 200, Bytes: 12,
	}
}

func (r *Ring) all(t testing.TB, from position) (all []Entry, lost uint64) {
	t.Helper()
	err := r.each(&from, func(e *Entry) error { all = append(all, *e); return nil }, func(n uint64) error { lost += n; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all, lost
}

func TestRing_keepsEverythingOfAnEntry(t *testing.T) {
	t.Parallel()
	r, e := NewRing(DefaultSize), entry(1)
	e.As, e.Remote, e.Subresource, e.Long = "vic", "127.0.0.1:1", "status", true
	e.Reason, e.Causes, e.Code = "Invalid", "FieldValueInvalid spec.a", 422
	r.Add(e)
	if got, lost := r.all(t, position{}); lost != 0 || len(got) != 1 || !reflect.DeepEqual(got[0], *e) {
		t.Errorf("kept %+v, lost %d, want %+v", got, lost, *e)
	}
}

func TestRing_dropsTheOldest(t *testing.T) {
	t.Parallel()
	r := NewRing(0) // the smallest one
	const n = 1000
	for i := range n {
		e := entry(i)
		e.URI += strings.Repeat("x", i*7%600) // records of many lengths, also longer ones than are kept
		r.Add(e)
	}
	got, lost := r.all(t, position{})
	if len(got) == 0 || uint64(len(got))+lost != n || lost != r.Dropped() || len(r.data) > maxRecord {
		t.Fatalf("%d entries, %d lost, %d dropped, %d bytes", len(got), lost, r.Dropped(), len(r.data))
	}
	for i, e := range got {
		if want := fmt.Sprint("p", n-len(got)+i); e.Name != want || len(e.URI) > maxText {
			t.Errorf("entry %d is %s with a URI of %d bytes, want %s", i, e.Name, len(e.URI), want)
		}
	}
}

func TestRing_longTexts_areCut(t *testing.T) {
	t.Parallel()
	r, e := NewRing(0), &Entry{}
	for _, text := range e.texts() {
		*text = strings.Repeat("a", 2*maxText)
	}
	for range 3 {
		r.Add(e)
	}
	if got, _ := r.all(t, position{}); len(got) != 1 || got[0].URI != strings.Repeat("a", maxText) {
		t.Errorf("kept %d entries: %+v", len(got), got)
	}
}

func TestRing_concurrentAdds(t *testing.T) {
	t.Parallel()
	r := NewRing(64 << 10)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 2000 {
				r.Add(entry(i))
			}
		})
	}
	var from position
	var seen, lost uint64
	read := func() {
		err := r.each(&from, func(e *Entry) error {
			if seen++; e.User != "ada" {
				t.Errorf("a torn entry: %+v", e)
			}
			return nil
		}, func(n uint64) error { lost += n; return nil })
		if err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for {
		read()
		select {
		case <-done:
			if read(); seen+lost != 16000 {
				t.Errorf("seen %d, lost %d", seen, lost)
			}
			return
		default:
		}
	}
}

func TestHandler_filters(t *testing.T) {
	t.Parallel()
	r := NewRing(DefaultSize)
	for i, e := range []Entry{
		{User: "ada", Verb: "get", Resource: "pizzas", Group: "a.example.com", Code: 200},
		{User: "ada", As: "vic", Verb: "list", Resource: "pizzas", Group: "b.example.com", Code: 403, Reason: "Forbidden"},
		{User: "joe", Verb: "get", URI: "/version", Code: 200},
		{Verb: "get", URI: "/x", Code: 401, Reason: "Unauthorized", Causes: "A b\nC d"},
	} {
		e.Name = fmt.Sprint(i)
		r.Add(&e)
	}
	for query, want := range map[string]string{
		"":                              "0123",
		"user=ada":                      "01",
		"user=vic":                      "1",
		"resource=pizzas":               "01",
		"resource=pizzas.b.example.com": "1",
		"resource=pizzas.":              "",
		"refused=true":                  "13",
		"refused=false":                 "0123",
		"verb=get&user=joe":             "2",
	} {
		w := httptest.NewRecorder()
		Handler(r).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", Path+"?"+query, nil))
		var answer struct{ Requests []shown }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d %s, %v", query, w.Code, w.Body, err)
		}
		got := ""
		for _, s := range answer.Requests {
			got += s.Name
		}
		if got != want {
			t.Errorf("%s selects %s, want %s", query, got, want)
		}
	}
}

func TestHandler_badRequests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, query, want string
		code                int
	}{
		{"GET", "user=a&user=b", "set 2 times", 400},
		{"GET", "kind=a", "unknown parameter", 400},
		{"GET", "refused=maybe", "not true or false", 400},
		{"POST", "", "only read", 405},
	} {
		w := httptest.NewRecorder()
		Handler(NewRing(0)).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), test.method, Path+"?"+test.query, nil))
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s %s: %d %s", test.method, test.query, w.Code, w.Body)
		}
	}
}

// stream opens a stream, and returns a function that reads its next event.
func stream(t *testing.T, url string) func() (kind, data string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != 200 {
		t.Fatalf("the stream answers %s", response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	return func() (kind, data string) {
		for lines.Scan() {
			line := lines.Text()
			if rest, ok := strings.CutPrefix(line, "event: "); ok {
				kind = rest
			}
			if rest, ok := strings.CutPrefix(line, "data: "); ok {
				return kind, rest
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return "", ""
	}
}

func TestHandler_stream(t *testing.T) {
	t.Parallel()
	r := NewRing(DefaultSize)
	server := httptest.NewServer(Handler(r))
	t.Cleanup(server.Close)
	r.Add(entry(0))
	r.Add(&Entry{User: "joe", Code: 403})
	next := stream(t, server.URL+"?user=ada")
	want := func(name string) {
		t.Helper()
		kind, data := next()
		var s shown
		if err := json.Unmarshal([]byte(data), &s); err != nil || kind != "REQUEST" || s.Name != name {
			t.Errorf("%s %s, %v; want %s", kind, data, err, name)
		}
	}
	want("p0")
	r.Add(&Entry{User: "joe", Code: 403})
	r.Add(entry(1))
	want("p1")
}

// A reader is told how many entries were overwritten before they reached it.
func TestRing_slowReader_isToldOfTheGap(t *testing.T) {
	t.Parallel()
	r := NewRing(8 << 10)
	r.Add(entry(0))
	from := r.oldest()
	for i := range 500 {
		r.Add(entry(i + 1))
	}
	got, lost := r.all(t, from)
	if lost == 0 || lost+uint64(len(got)) != 501 || got[len(got)-1].Name != "p500" {
		t.Errorf("lost %d, read %d", lost, len(got))
	}
}

func TestHandler_streams_areBounded(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(Handler(NewRing(0)))
	t.Cleanup(server.Close)
	for range maxReaders {
		stream(t, server.URL)
	}
	request, err := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 429 || response.Header.Get("Retry-After") == "" {
		t.Errorf("one stream more: %s", response.Status)
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	status := &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Reason: metav1.StatusReasonInvalid,
		Message: "spec.password: Invalid value: \"hunter2\"",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.password", Message: "hunter2"},
			{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.password", Message: "again"},
		}},
	}
	asJSON, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := status.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := &runtime.Unknown{TypeMeta: runtime.TypeMeta{Kind: "Status", APIVersion: "v1"}, Raw: raw}
	asProtobuf, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		code           int
		body           []byte
		reason, causes string
	}{
		"JSON":         {422, asJSON, "Invalid", "FieldValueInvalid spec.password"},
		"protobuf":     {422, append([]byte("k8s\x00"), asProtobuf...), "Invalid", "FieldValueInvalid spec.password"},
		"cut":          {422, asJSON[:40], "UnprocessableEntity", ""},
		"no body":      {404, nil, "NotFound", ""},
		"text":         {429, []byte("too many"), "TooManyRequests", ""},
		"another kind": {400, []byte(`{"kind":"Pizza","reason":"Secret"}`), "BadRequest", ""},
		"hostile":      {400, []byte(`{"kind":"Status","reason":"a\nb"}`), "a", ""},
	} {
		if reason, causes := Refusal(test.code, test.body); reason != test.reason || causes != test.causes {
			t.Errorf("%s: %q %q, want %q %q", name, reason, causes, test.reason, test.causes)
		}
	}
}

func BenchmarkRing_Add(b *testing.B) {
	r, e := NewRing(DefaultSize), entry(1)
	b.ReportAllocs()
	for b.Loop() {
		r.Add(e)
	}
}
