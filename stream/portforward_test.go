package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/stream"
)

// forwards are the protocols in which clients forward ports.
var forwards = map[string]func(config *rest.Config, u *url.URL) (httpstream.Dialer, error){
	"SPDY": func(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), nil
	},
	"WebSocket": func(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, config)
	},
}

// forwarded starts a client that forwards a local port to another, and returns the address of the local port.
func forwarded(t *testing.T, config *rest.Config, way, path string, port int) (address string, lost func() string) {
	t.Helper()
	dialer, err := forwards[way](config, urlOf(t, config, path, nil))
	if err != nil {
		t.Fatal(err)
	}
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var errs lockedBuffer
	forwarder, err := portforward.NewOnAddressesForStreaming(
		dialer,
		[]string{"127.0.0.1"},
		[]string{"0:" + strconv.Itoa(port)},
		stop,
		ready,
		io.Discard,
		&errs,
	)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("forward: %v", err)
	}
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), errs.String
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// echo returns a listener that sends the input of each connection back when the client has closed its side.
func echo(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(plain{conn}, plain{conn})
			}()
		}
	}()
	return listener
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func dialLocal(ctx context.Context, _ *stream.PortForwardRequest[v1.Widget], port int32) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(stream.PortForward("portforward", dialLocal)))
	website := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page ", r.URL.Path) }))
	t.Cleanup(website.Close)
	echoing := echo(t)
	for way := range forwards {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			address, _ := forwarded(t, config, way, "w/portforward", portOf(website.Listener))
			for i := range 3 {
				response, err := http.Get(fmt.Sprintf("http://%s/%d", address, i))
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil || string(body) != fmt.Sprintf("page /%d", i) {
					t.Errorf("got %q, %v", body, err)
				}
			}
			address, lost := forwarded(t, config, way, "w/portforward", portOf(echoing))
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					text := strings.Repeat(strconv.Itoa(i), 50_000)
					if got, err := exchange(address, text); err != nil || got != text {
						t.Errorf("connection %d: %d bytes of %d, %v", i, len(got), len(text), err)
					}
				})
			}
			all.Wait()
			if errs := lost(); errs != "" {
				t.Errorf("the client says %s", errs)
			}
		})
	}
}

// exchange sends a text, closes its side, and returns the answer.
func exchange(address, text string) (string, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, text)
		sent <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	return string(got), errors.Join(err, <-sent)
}

// refusal returns the text of one connection's error stream.
func refusal(t *testing.T, dialer httpstream.Dialer, port int) string {
	t.Helper()
	conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil || protocol != portforward.PortForwardProtocolV1Name {
		t.Fatalf("protocol %q, %v", protocol, err)
	}
	defer conn.Close()
	open := func(kind string) httpstream.Stream {
		stream, err := conn.CreateStream(
			http.Header{corev1.StreamType: {kind}, corev1.PortHeader: {strconv.Itoa(port)}, corev1.PortForwardRequestIDHeader: {"0"}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	errs, data := open(corev1.StreamTypeError), open(corev1.StreamTypeData)
	text, err := io.ReadAll(errs)
	if err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(data); len(got) > 0 || err != nil {
		t.Errorf("data %q, %v", got, err)
	}
	return string(text)
}

func TestPortForward_refusedPort_getsError(t *testing.T) { // alone: it counts goroutines
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	config := startWidgets(
		t,
		widgets(
			stream.PortForward("portforward", func(ctx context.Context, r *stream.PortForwardRequest[v1.Widget], port int32) (net.Conn, error) {
				switch port {
				case 1:
					panic("as the test wants")
				case 2:
					return nil, nil
				}
				return dialLocal(ctx, r, port)
			}),
		),
	)
	leavesNothing(t, func(t *testing.T) { refusedPorts(t, config, portOf(closed)) })
}

func refusedPorts(t *testing.T, config *rest.Config, closed int) {
	for way, dialers := range forwards {
		for _, test := range []struct {
			query string
			port  int
			want  string
		}{
			{"", closed, "connection refused"},
			{"", 1, "Internal error occurred: the session caused a panic in the server"},
			{"", 2, "no connection"},
			{"?ports=7&ports=8", closed, "the request is for the ports [7 8]"},
		} {
			dialer, err := dialers(config, urlOf(t, config, "w/portforward"+test.query, nil))
			if err != nil {
				t.Fatal(err)
			}
			got := refusal(t, dialer, test.port)
			if !strings.HasPrefix(got, fmt.Sprintf("error forwarding port %d: ", test.port)) || !strings.Contains(got, test.want) {
				t.Errorf("%s, port %d%s: %q", way, test.port, test.query, got)
			}
		}
	}
}

func TestPortForward_clientGone_closesConnections(t *testing.T) { // alone: it counts goroutines
	closed := make(chan struct{}, 10)
	config := startWidgets(
		t,
		widgets(stream.PortForward("portforward", func(context.Context, *stream.PortForwardRequest[v1.Widget], int32) (net.Conn, error) {
			one, other := net.Pipe()
			go func() {
				_, _ = io.WriteString(other, "hello")
				_, _ = io.Copy(io.Discard, other)
				closed <- struct{}{}
			}()
			return one, nil
		})),
	)
	leavesNothing(t, func(t *testing.T) {
		for way := range forwards {
			var client killable
			address, _ := forwarded(t, client.between(t, config), way, "w/portforward", 80)
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			client.kill()
			<-closed
			conn.Close()
		}
	})
}

// unwell is an in-process connection that panics when it is used.
type unwell struct {
	net.Conn
	reading bool
}

func (c unwell) Read(p []byte) (int, error) {
	if c.reading {
		panic("as the test wants")
	}
	return c.Conn.Read(p)
}

func (c unwell) Write([]byte) (int, error) { panic("as the test wants") }

func TestPortForward_panic_endsOneConnection(t *testing.T) { // alone: it counts goroutines
	config := startWidgets(
		t,
		widgets(
			stream.PortForward("portforward", func(_ context.Context, _ *stream.PortForwardRequest[v1.Widget], port int32) (net.Conn, error) {
				one, _ := net.Pipe()
				return unwell{one, port == 1}, nil
			}),
		),
	)
	leavesNothing(t, func(t *testing.T) {
		for way := range forwards {
			for _, port := range []int{1, 2} {
				address, _ := forwarded(t, config, way, "w/portforward", port)
				if got, err := exchange(address, "hello"); got != "" {
					t.Errorf("%s: port %d: %q, %v", way, port, got, err)
				}
			}
		}
	})
}
