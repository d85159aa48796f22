package apitest_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

func TestWatch_start(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	a := c.create("a")
	c.create("b")
	b := c.patch(mergePatch, widgetsPath+"/b", `{"spec":{"replicas":1}}`).want(200).widget()
	c.delete(widgetsPath+"/a", nil).want(200)
	now := c.get(widgetsPath).str("metadata", "resourceVersion")
	watches := map[*stream][]string{}
	for _, test := range []struct {
		path, query string
		want        []string
	}{
		{widgetsPath, "", []string{"ADDED b"}},
		{widgetsPath, "&resourceVersion=0", []string{"ADDED b"}},
		{widgetsPath, "&resourceVersion=" + a.ResourceVersion, []string{"ADDED b", "MODIFIED b", "DELETED a"}},
		{widgetsPath, "&resourceVersion=" + b.ResourceVersion, []string{"DELETED a"}},
		{widgetsPath, "&resourceVersion=" + now, nil},
		{widgetsPath, "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", nil},
		{widgetsPath, "&fieldSelector=metadata.name%3Dlast", nil},
		{widgetsPath, "&fieldSelector=metadata.name%21%3Db&resourceVersion=" + a.ResourceVersion, []string{"DELETED a"}},
		{widgetsBetaPath, "", []string{"ADDED b"}},
		{"/apis/shop.example.com/v1/widgets", "", []string{"ADDED b"}},
		{"/apis/shop.example.com/v1/watch/namespaces/default/widgets", "", []string{"ADDED b"}},
		{"/apis/shop.example.com/v1/watch/widgets", "", []string{"ADDED b"}},
		{"/apis/shop.example.com/v1/watch/namespaces/default/widgets/last", "", nil},
	} {
		watches[c.watch(test.path+"?watch=true"+test.query)] = test.want
	}
	created := c.create("last")
	c.delete(widgetsPath+"/last", nil).want(200)
	for w, want := range watches {
		w.want(want...)
		e := w.want("ADDED last")
		if got := text(e.Object, "metadata", "resourceVersion"); got != created.ResourceVersion {
			t.Errorf("watch %s: the event has revision %s, the object %s", w.asked, got, created.ResourceVersion)
		}
		w.want("DELETED last")
	}
}

func TestWatch_rejections(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for name, test := range map[string]struct {
		query  []string
		code   int
		reason metav1.StatusReason
		part   string
	}{
		"a match without initial events": {[]string{"resourceVersionMatch", "NotOlderThan"}, 422, metav1.StatusReasonInvalid,
			"resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"},
		"initial events without a match": {[]string{"sendInitialEvents", "true"}, 422, metav1.StatusReasonInvalid, "sendInitialEvents " +
			"requires setting resourceVersionMatch to NotOlderThan"},
		"initial events at exactly": {[]string{"sendInitialEvents", "true", "resourceVersion", "1", "resourceVersionMatch", "Exact"}, 422,
			metav1.StatusReasonInvalid, "NotOlderThan"},
		"a revision that is none": {[]string{"resourceVersion", "nonsense"}, 400, metav1.StatusReasonBadRequest, `resourceVersion: ` +
			`Invalid value: "nonsense"`},
		"a time that is none": {[]string{"timeoutSeconds", "soon"}, 400, metav1.StatusReasonBadRequest, ""},
		"initial events of the future": {[]string{"sendInitialEvents", "true", "resourceVersion", "9000000000000000", "resourceVersionMatch",
			"NotOlderThan"}, 0, "", "Too large resource version: 9000000000000000"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &client{t, c.config, c.http}
			path := widgetsPath + query(append(test.query, "watch", "true")...)
			if test.code != 0 {
				c.get(path).refused(test.code, test.reason, test.part)
				return
			}
			// The watch itself reports the error.
			if e := c.watch(path).next(); e.Type != "ERROR" || text(e.Object, "code") != "504" {
				t.Errorf("got %v", e)
			}
		})
	}
	c.get("/apis/shop.example.com/v1/watch/namespaces/default/widgets/a?sendInitialEvents=false").refused(422, metav1.StatusReasonInvalid)
}

// A client with a revision that was never shown knows another store, for example because an older copy of the
// directory was restored. It has to read everything anew.
func TestWatch_futureRevision_isExpired(t *testing.T) {
	t.Parallel()
	notOn(t, "the watch cache waits for it", etcd.Name)
	c := startWith(t, shop(), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()})
	var n int
	fmt.Sscan(c.create("a").ResourceVersion, &n)
	first := c.watch(widgetsPath + query("watch", "1", "resourceVersion", fmt.Sprint(n+2))).next()
	if first.Type != "ERROR" || text(first.Object, "code") != "410" || text(first.Object, "reason") != "Expired" {
		t.Errorf("got %v", first)
	}
}

func TestWatch_selection_enterAndLeave(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	rv := c.create("w", spec(fields{"size": "small"})).ResourceVersion
	large := c.watch(widgetsPath + query("watch", "1", "resourceVersion", rv, "fieldSelector", "spec.size=large"))
	labelled := c.watch(widgetsPath + query("watch", "1", "resourceVersion", rv, "labelSelector", "a=b"))
	c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"large"}}`).want(200)
	large.want("ADDED w")
	c.patch(mergePatch, widgetsPath+"/w", `{"metadata":{"labels":{"a":"b"}}}`).want(200)
	large.want("MODIFIED w")
	labelled.want("ADDED w")
	left := c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"small"}}`).want(200).widget()
	e := large.want("DELETED w")
	if got := text(e.Object, "spec", "size"); got != "large" {
		t.Errorf("an object that leaves is shown as it was: got size %s", got)
	}
	if got := text(e.Object, "metadata", "resourceVersion"); got != left.ResourceVersion {
		t.Errorf("it leaves at revision %s: got %s", left.ResourceVersion, got)
	}
	labelled.want("MODIFIED w")
	c.delete(widgetsPath+"/w", nil).want(200)
	labelled.want("DELETED w")
	c.create("w", spec(fields{"size": "large"}))
	large.want("ADDED w")
}

func TestWatchList(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	const list = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	end := func(e event, kind, version string) {
		t.Helper()
		if e.Type != "BOOKMARK" || text(e.Object, "metadata", "annotations", "k8s.io/initial-events-end") != "true" ||
			text(e.Object, "metadata", "resourceVersion") == "" || text(e.Object, "kind") != kind || text(e.Object, "apiVersion") != version {
			t.Errorf("got %v, want the bookmark that ends the list", e)
		}
	}
	// An empty list.
	w := c.watch(widgetsPath + list)
	end(w.next(), "Widget", "shop.example.com/v1")
	c.create("a")
	w.want("ADDED a")
	c.create("b")
	w.want("ADDED b")

	w = c.watch(widgetsPath + list)
	w.want("ADDED a", "ADDED b")
	bookmark := w.next()
	end(bookmark, "Widget", "shop.example.com/v1")
	if got, want := text(
		bookmark.Object,
		"metadata",
		"resourceVersion",
	), c.get(widgetsPath).
		str("metadata", "resourceVersion"); got != want &&
		!shared() { // others write there
		t.Errorf("the bookmark is of revision %s, the list %s", got, want)
	}
	resumed := c.watch(widgetsPath + "?watch=1&resourceVersion=" + text(bookmark.Object, "metadata", "resourceVersion"))
	c.create("c")
	w.want("ADDED c")
	resumed.want("ADDED c")

	w = c.watch(widgetsBetaPath + list + "&resourceVersion=0&labelSelector=none")
	end(w.next(), "Widget", "shop.example.com/v1beta1")

	// Without bookmarks, nothing marks the end.
	w = c.watch(widgetsPath + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	w.want("ADDED a", "ADDED b", "ADDED c")
	c.create("d")
	w.want("ADDED d")

	// As metadata only.
	w = c.watch(widgetsPath+list, "Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	if e := w.want("ADDED a", "ADDED b", "ADDED c", "ADDED d"); text(e.Object, "kind") != "PartialObjectMetadata" || e.Object["spec"] != nil {
		t.Errorf("got %v", e)
	}
	end(w.next(), "PartialObjectMetadata", "meta.k8s.io/v1")
}

func TestWatch_timeout(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a")
	w := c.watch(widgetsPath + "?watch=1&timeoutSeconds=1")
	w.want("ADDED a")
	w.ends()

	// With a bookmark to resume from.
	w = c.watch(widgetsPath + "?watch=1&timeoutSeconds=1&allowWatchBookmarks=true")
	w.want("ADDED a")
	e := w.next()
	if e.Type != "BOOKMARK" || text(e.Object, "kind") != "Widget" || text(e.Object, "metadata", "resourceVersion") == "" {
		t.Errorf("got %v, want a bookmark", e)
	}
	w.ends()
}

func TestWatch_conversion(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.watch(widgetsBetaPath + "?watch=1")
	c.create("w", spec(fields{"parts": []fields{{"name": "leg", "count": 4}}}))
	e := w.want("ADDED w")
	if got := text(
		e.Object,
		"apiVersion",
	) + text(
		e.Object,
		"kind",
	) + text(
		e.Object,
		"spec",
		"parts",
	); got != "shop.example.com/v1beta1Widget[leg=4]" {
		t.Errorf("got %s", got)
	}
	c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"parts":["top=1"]}}`).want(200)
	if e := w.want("MODIFIED w"); text(e.Object, "spec", "parts") != "[top=1]" {
		t.Errorf("got %v", e)
	}
	hub := c.watch(widgetsPath + "?watch=1")
	if e := hub.want("ADDED w"); text(e.Object, "spec", "parts") != "[map[count:1 name:top]]" {
		t.Errorf("got %v", e)
	}
	c.delete(widgetsPath+"/w", nil).want(200)
	if e := w.want("DELETED w"); text(e.Object, "apiVersion") != "shop.example.com/v1beta1" || text(e.Object, "spec", "parts") != "[top=1]" {
		t.Errorf("got %v", e)
	}
	hub.want("DELETED w")
}

func TestWatch_manyWatchers(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	const watchers, writes = 20, 20
	rv := c.get(widgetsPath).str("metadata", "resourceVersion")
	var all []*stream
	for i := range watchers {
		path := widgetsPath
		if i%3 == 0 {
			path = widgetsBetaPath
		}
		all = append(all, c.watch(path+"?watch=1&resourceVersion="+rv))
	}
	var want []string
	for i := range writes {
		name := fmt.Sprintf("w%02d", i)
		c.create(name)
		c.delete(widgetsPath+"/"+name, nil).want(200)
		want = append(want, "ADDED "+name, "DELETED "+name)
	}
	for _, w := range all {
		w.want(want...)
	}
}

func TestWatchOverHTTP1(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	config := rest.CopyConfig(c.config)
	config.NextProtos = []string{"http/1.1"}
	old := connect(t, config)
	w := old.watch(widgetsPath + "?watch=1")
	old.create("a")
	w.want("ADDED a")
	c.create("b")
	w.want("ADDED b")
}

func TestWatchOverWebSocket(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a")
	security, err := rest.TLSConfigFor(c.config)
	if err != nil {
		t.Fatal(err)
	}
	security.NextProtos = []string{"http/1.1"}
	address := strings.TrimPrefix(c.config.Host, "https://")
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, security)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s?watch=1 HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "+
		"13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nOrigin: %s\r\n\r\n", widgetsPath, address, c.config.Host)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", response, err)
	}
	// A frame: its kind, its length in two bytes after the mark 126, and the event.
	for _, want := range []string{"ADDED a", "ADDED b"} {
		head := make([]byte, 4)
		if _, err := io.ReadFull(reader, head); err != nil {
			t.Fatal(err)
		}
		if head[0] != 0x81 || head[1] != 126 {
			t.Fatalf("got a frame %x", head)
		}
		payload := make([]byte, binary.BigEndian.Uint16(head[2:]))
		if _, err := io.ReadFull(reader, payload); err != nil {
			t.Fatal(err)
		}
		var e event
		decode(t, payload, &e)
		if e.String() != want {
			t.Errorf("got %s, want %s", e, want)
		}
		if want == "ADDED a" {
			c.create("b")
		}
	}
}

func TestRequests_invalidNamespaceOrRevision_areBadRequests(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.get(widgetsPath+query("watch", "1", "resourceVersion", "abc")).refused(400, metav1.StatusReasonBadRequest, "resourceVersion")
	for _, namespace := range []string{"%2e%2e", "%2e", "a%25b"} {
		path := strings.Replace(widgetsPath, "default", namespace, 1)
		c.get(path).refused(400, metav1.StatusReasonBadRequest, "namespace")
		c.get(path+"/a").refused(400, metav1.StatusReasonBadRequest, "namespace")
		c.post(path, widget("a")).refused(400, metav1.StatusReasonBadRequest, "namespace")
	}
}

func TestWatch_webSocketOfOtherOrigin_isRejected(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	a := c.http1().get(widgetsPath+"?watch=1", "Connection", "Upgrade", "Upgrade", "websocket", "Origin", "https://elsewhere.example.com",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	a.refused(403, metav1.StatusReasonForbidden, "elsewhere.example.com")
}
