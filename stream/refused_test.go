package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

func with(header http.Header, name, value string) http.Header {
	header = header.Clone()
	header.Set(name, value)
	return header
}

func TestSessions_invalidRequest_isRefused(t *testing.T) { // alone: it counts goroutines
	toy := newToy()
	stopped := apierrors.NewConflict(schema.GroupResource{Group: "shop.example.com", Resource: "widgets"}, "w", errors.New("it is stopped"))
	config := startWidgets(t, widgets(
		execs(toy).Containers(func(*v1.Widget) []string { return []string{"main", "side"} }),
		stream.Exec("empty", toy.run).Containers(func(*v1.Widget) []string { return nil }),
		stream.Exec("stopped", toy.run).Check(func(context.Context, *stream.ExecRequest[v1.Widget]) error { return stopped }),
		stream.Attach("attach", func(context.Context, *stream.AttachRequest[v1.Widget], stream.Streams) error { return nil }).
			Check(func(context.Context, *stream.AttachRequest[v1.Widget]) error {
				return fmt.Errorf("attach: %w", stopped)
			}),
		stream.PortForward("portforward", dialLocal).Check(func(_ context.Context, r *stream.PortForwardRequest[v1.Widget]) error {
			if len(r.Options.Ports) > 1 {
				return stopped
			}
			return nil
		}),
		stream.Proxy("proxy", func(context.Context, *stream.ProxyRequest[v1.Widget]) (*stream.Backend, error) { return nil, nil }).
			Check(func(context.Context, *stream.ProxyRequest[v1.Widget]) error { return stopped }),
		annex.Action("inspection", func(_ context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
			if r.Object.Phase == "Panic" {
				panic("as the test wants")
			}
			return r.Object, nil
		}),
	))
	leavesNothing(t, func(t *testing.T) {
		refusals(t, config)
		refusedBodies(t, config)
	})
}

func refusals(t *testing.T, config *rest.Config) {
	for _, test := range []struct {
		method, path string
		header       http.Header
		code         int
		text         string
	}{
		{"GET", "w/exec?command=x", nil, 400, "Upgrade request required"},
		{"POST", "w/exec?command=x", nil, 400, "Upgrade request required"},
		{"GET", "w/portforward", nil, 400, "Upgrade request required"},
		{"GET", "w/exec?command=x", asEcho, 400, `unable to upgrade to \"echo\": use websocket or SPDY/3.1`},
		{"GET", "w/portforward", asEcho, 400, `unable to upgrade to \"echo\"`},
		{"GET", "w/exec?stdout=false&stderr=0", asWebSocket, 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"GET", "w/exec?stdout=false&tty=true", asWebSocket, 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"GET", "w/exec?command=x", with(asWebSocket, "Sec-Websocket-Protocol", "v9.channel.k8s.io"), 400, "unable to upgrade: the client " +
			"supports v9.channel.k8s.io, the server v5.channel.k8s.io, v4.channel.k8s.io, v4.base64.channel.k8s.io, channel.k8s.io, " +
			"base64.channel.k8s.io"},
		{"GET", "w/exec?command=x", with(asWebSocket, "Sec-Websocket-Version", "8"), 400, "unable to upgrade: "},
		{"POST", "w/exec?command=x", with(asSPDY, "X-Stream-Protocol-Version", "v5.channel.k8s.io"), 400, "unable to upgrade: the client " +
			"supports v5.channel.k8s.io, the server v4.channel.k8s.io"},
		{"GET", "w/portforward", asWebSocket, 400, "the server SPDY/3.1+portforward.k8s.io"},
		{"POST", "w/portforward", asSPDY, 400, "the server portforward.k8s.io"},
		{"GET", "w/exec", nil, 400, "Upgrade request required"},
		{"GET", "w/exec?stdin=true", asWebSocket, 400, "you must specify a command, with one parameter command for each argument"},
		{"POST", "w/exec?command=&command=x", asSPDY, 400, "you must specify a command"},
		{"GET", "w/exec?container=none", asWebSocket, 400, "container none is not valid for widgets w, choose one of: main, side"},
		{"GET", "w/empty", asWebSocket, 400, "widgets w has no containers"},
		{"GET", "w/stopped?command=x", asWebSocket, 409, "it is stopped"},
		{"POST", "w/stopped?command=x", asSPDY, 409, "it is stopped"},
		{"GET", "w/attach", asWebSocket, 409, "attach: "},
		{"POST", "w/portforward?ports=1&ports=2", asForward, 409, "it is stopped"},
		{"POST", "w/portforward?ports=1&ports=many", asForward, 400, `parameter ports: \"many\" is not an integer of 32 bits`},
		{"GET", "w/proxy/x", nil, 409, "it is stopped"},
		{"GET", "none/exec", asWebSocket, 404, `widgets.shop.example.com \"none\" not found`},
		{"PUT", "w/exec", nil, 405, "the server does not allow this method on the requested resource"},
		{"GET", "w/exec?command=exit&command=0&unknown=1&stdin=maybe", asWebSocket, 101, ""}, // as for pods: unknown is ignored, maybe is true
	} {
		response, text := ask(t, config, test.method, test.path, nil, test.header)
		if response.StatusCode == 101 {
			response.Body.Close()
		}
		if response.StatusCode != test.code || !strings.Contains(text, test.text) ||
			test.code != 101 && !strings.Contains(text, `"kind":"Status"`) {
			t.Errorf("%s %s: %s %s", test.method, test.path, response.Status, text)
		}
	}
}

func refusedBodies(t *testing.T, config *rest.Config) {
	for _, test := range []struct {
		body, mediaType string
		code            int
		text            string
	}{
		{`{"phase":7}`, "application/json", 400, "cannot unmarshal number into Go struct field"},
		{`[]`, "application/json", 400, "cannot unmarshal array"},
		{`"phase"`, "application/json", 400, "cannot unmarshal string"},
		{`{"phase":"x"`, "application/json", 400, "unexpected end of JSON input"},
		{`{"kind":"Widget","apiVersion":"shop.example.com/v1"}`, "application/json", 400, "Widget"},
		{"phase: [x]", "application/yaml", 400, "cannot unmarshal array"},
		{"phase", "text/plain", 415, "the body of the request was in an unknown format"},
		{"\x00\x01\x02", "application/vnd.kubernetes.protobuf", 415, ""},
		{`{"phase":"Panic"}`, "application/json", 500, "the server"},
		{`{"phase":"x"}`, "application/json", 201, `"phase":"x"`},
	} {
		response, text := ask(t, config, "POST", "w/inspection", strings.NewReader(test.body), http.Header{"Content-Type": {test.mediaType}})
		if response.StatusCode != test.code || !strings.Contains(text, test.text) ||
			test.code != 201 && !strings.Contains(text, `"kind":"Status"`) {
			t.Errorf("%s %s: %s %s", test.mediaType, test.body, response.Status, text)
		}
	}
}

// dial opens a WebSocket as a browser does.
func dial(t *testing.T, config *rest.Config, path string, protocols ...string) *websocket.Conn {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: protocols}
	conn, response, err := dialer.DialContext(t.Context(), strings.Replace(config.Host, "https", "wss", 1)+widgetsPath+"/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestExec_browserProtocols(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(execs(newToy())))
	for _, test := range []struct {
		protocol    string
		kind        int
		sent, begin string
		want        []string
	}{
		{"v4.base64.channel.k8s.io", websocket.TextMessage, "0aGVsbG8=", "1",
			[]string{"1aGVsbG8=", "3eyJtZXRhZGF0YSI6e30sInN0YXR1cyI6IlN1Y2Nlc3MifQ=="}},
		{"base64.channel.k8s.io", websocket.TextMessage, "0aGVsbG8=", "1", []string{"1aGVsbG8="}},
		{"channel.k8s.io", websocket.BinaryMessage, "\x00hello", "\x01", []string{"\x01hello"}},
		{"", websocket.BinaryMessage, "\x00hello", "\x01", []string{"\x01hello"}},
		{"v5.channel.k8s.io", websocket.BinaryMessage, "\x00hello", "\x01", []string{"\x01hello", "\x03" + `{"metadata":{},"status":"Success"}`}},
	} {
		var protocols []string
		if test.protocol != "" {
			protocols = []string{"unknown", test.protocol}
		}
		conn := dial(t, config, "w/exec?stdin=true&command=head&command=5", protocols...)
		if got := conn.Subprotocol(); got != test.protocol {
			t.Errorf("%s: protocol %q", test.protocol, got)
		}
		// Messages without a stream are discarded: empty messages, unknown channels, invalid sizes.
		for _, odd := range []string{"", test.sent[:1], "\x09x", "9x", "\x04{", "4???", "\xff", "\xff\x07"} {
			if err := conn.WriteMessage(test.kind, []byte(odd)); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.WriteMessage(test.kind, []byte(test.sent)); err != nil {
			t.Fatal(err)
		}
		for _, want := range append([]string{test.begin}, test.want...) {
			if kind, got, err := conn.ReadMessage(); err != nil || kind != test.kind || string(got) != want {
				t.Errorf("%s: got %d %q, %v; want %q", test.protocol, kind, got, err, want)
			}
		}
		if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			t.Errorf("%s: the end is %v", test.protocol, err)
		}
	}
}

func TestExec_panic_endsOneSession(t *testing.T) { // alone: it counts goroutines
	config := startWidgets(t, widgets(execs(newToy())))
	leavesNothing(t, func(t *testing.T) {
		for _, d := range dialects()[:3] {
			for range 10 {
				if out, _, err := d.run(
					t,
					t.Context(),
					config,
					command{words: []string{"panic"}, input: waiting{t.Context()}},
				); out != "half" ||
					err == nil {
					t.Errorf("%s: %q, %v", d.name, out, err)
				}
			}
			if out, _, err := d.run(t, t.Context(), config, command{words: []string{"echo", "x"}}); err != nil {
				t.Errorf("%s: afterwards: %q, %v", d.name, out, err)
			}
		}
	})
}

// descriptors returns the number of open file descriptors of the process, where the system can list them.
func descriptors(t testing.TB) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return len(open)
}

func TestNew_sessionWithoutFunction(t *testing.T) {
	t.Parallel()
	_, err := annex.New(t.Context(), shop(widgets(
		stream.Exec[v1.Widget](
			"a",
			nil,
		),
		stream.ExecAt[v1.Widget]("b", nil),
		stream.Attach[v1.Widget]("c", nil),
		stream.AttachAt[v1.Widget]("d", nil),
		stream.PortForward[v1.Widget]("e", nil),
		stream.PortForwardAt[v1.Widget]("f", nil),
		stream.Proxy[v1.Widget]("g", nil),
	)), annex.Options{Storage: memory.Storage()})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if want := fmt.Sprintf("subresource %q: the function is missing", name); !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}
