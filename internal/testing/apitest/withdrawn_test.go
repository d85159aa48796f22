package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/util/httpstream" //lint:ignore SA1019 dialers of client-go return its types
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// streamed is a long-running request. open returns when it has begun. The returned function waits for its end, and
// returns an error if the end was not orderly.
type streamed struct {
	name string
	open func(ctx context.Context, c *client) (wait func() error, err error)
}

// body returns a stream in the body of a response.
func body(path string, headers ...string) func(context.Context, *client) (func() error, error) {
	return func(ctx context.Context, c *client) (func() error, error) {
		response := c.send(ctx, http.MethodGet, path, nil, headers...)
		if response.StatusCode != http.StatusOK {
			raw, _ := io.ReadAll(response.Body)
			response.Body.Close()
			return nil, fmt.Errorf("%s: %s", response.Status, raw)
		}
		return func() error {
			defer response.Body.Close()
			_, err := io.Copy(io.Discard, response.Body)
			return err
		}, nil
	}
}

// socket returns a stream over a WebSocket.
func socket(path, protocol string) func(context.Context, *client) (func() error, error) {
	return func(ctx context.Context, c *client) (func() error, error) {
		config, err := rest.TLSConfigFor(c.config)
		if err != nil {
			return nil, err
		}
		dialer := websocket.Dialer{TLSClientConfig: config, NetDialContext: c.config.Dial}
		if protocol != "" {
			dialer.Subprotocols = []string{protocol}
		}
		header := http.Header{}
		if c.config.BearerToken != "" {
			header.Set("Authorization", "Bearer "+c.config.BearerToken)
		}
		header.Set("Origin", c.config.Host)
		conn, response, err := dialer.DialContext(ctx, "wss"+strings.TrimPrefix(c.config.Host, "https")+path, header)
		if err != nil {
			if response != nil {
				raw, _ := io.ReadAll(response.Body)
				err = fmt.Errorf("%w: %s: %s", err, response.Status, raw)
			}
			return nil, err
		}
		return func() error {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			for {
				if _, _, err := conn.ReadMessage(); err != nil {
					if closed := (*websocket.CloseError)(nil); errors.As(err, &closed) && closed.Code == websocket.CloseNormalClosure {
						return nil
					}
					return fmt.Errorf("no close frame: %w", err)
				}
			}
		}, nil
	}
}

// begun is a writer that closes a channel at the first write.
type begun struct {
	once sync.Once
	done chan struct{}
}

func (b *begun) Write(p []byte) (int, error) {
	b.once.Do(func() { close(b.done) })
	return len(p), nil
}

// command returns a session over SPDY.
func command(path string) func(context.Context, *client) (func() error, error) {
	return func(ctx context.Context, c *client) (func() error, error) {
		to, err := url.Parse(c.config.Host + path)
		if err != nil {
			return nil, err
		}
		executor, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, to)
		if err != nil {
			return nil, err
		}
		out, result := &begun{done: make(chan struct{})}, make(chan error, 1)
		go func() {
			result <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: io.Discard})
		}()
		select {
		case <-out.done:
		case err := <-result:
			return nil, fmt.Errorf("it has ended: %w", err)
		}
		return func() error {
			if err := <-result; err == nil || !strings.Contains(err.Error(), "no longer") {
				return fmt.Errorf("the client is told %v", err)
			}
			return nil
		}, nil
	}
}

// forwarding returns a session of forwarded ports.
func forwarding(
	path string,
	dialer func(c *client, to *url.URL) (httpstream.Dialer, error),
) func(context.Context, *client) (func() error, error) {
	return func(ctx context.Context, c *client) (func() error, error) {
		to, err := url.Parse(c.config.Host + path)
		if err != nil {
			return nil, err
		}
		d, err := dialer(c, to)
		if err != nil {
			return nil, err
		}
		conn, _, err := d.Dial("portforward.k8s.io")
		if err != nil {
			return nil, err
		}
		return func() error {
			defer conn.Close()
			select {
			case <-conn.CloseChan():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	}
}

func allStreamed() []streamed {
	watch := widgetsPath + "?watch=1"
	list := widgetsPath + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	tail := "/query/shop.example.com/v1/namespaces/default/widgets?watch=true"
	return []streamed{
		{"watch as JSON", body(watch)},
		{"watch as protobuf", body("/apis/rbac.authorization.k8s.io/v1/clusterroles?watch=1", "Accept", protobufType)},
		{"watch as a table", body(watch, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")},
		{"watch list", body(list)},
		{"watch of namespaces", body("/api/v1/namespaces?watch=1")},
		{"watch by WebSocket", socket(watch, "")},
		{"tail", body(tail, "Accept", "text/event-stream")},
		{"tail of all namespaces", body("/query/shop.example.com/v1/widgets?watch=true", "Accept", "text/event-stream")},
		{"tail by WebSocket", socket(tail, "")},
		{"log", body(gizmosPath + "/w/log?follow=true")},
		{"exec by WebSocket", socket(widgetsPath+"/w/exec?command=true&stdout=true", "v5.channel.k8s.io")},
		{"attach by WebSocket", socket(widgetsPath+"/w/attach?stdout=true", "v4.channel.k8s.io")},
		{"exec by SPDY", command(widgetsPath + "/w/exec?command=true&stdout=true")},
		{"attach by SPDY", command(widgetsPath + "/w/attach?stdout=true")},
		{"portforward by SPDY", forwarding(widgetsPath+"/w/portforward", func(c *client, to *url.URL) (httpstream.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(c.config)
			return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to), err
		})},
		{"portforward by WebSocket", forwarding(widgetsPath+"/w/portforward", func(c *client, to *url.URL) (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(to, c.config)
		})},
		{"handler", body("/orders/stream")},
	}
}

// endsWhen opens streams as a client, and fails the test unless none has ended before withdraw is called, and all end
// after.
func endsWhen(t *testing.T, c *client, what string, streams []streamed, withdraw func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type outcome struct {
		name string
		err  error
	}
	ended := make(chan outcome, len(streams))
	opened := 0
	for _, s := range streams {
		wait, err := s.open(ctx, c)
		if err != nil {
			t.Errorf("%s, %s: %v", what, s.name, err)
			continue
		}
		opened++
		go func() { ended <- outcome{s.name, wait()} }()
	}
	select {
	case early := <-ended:
		t.Fatalf("%s: %s has ended before, %v", what, early.name, early.err)
	default:
	}
	withdraw()
	for range opened {
		if got := <-ended; got.err != nil {
			t.Errorf("%s: %s: %v", what, got.name, got.err)
		}
	}
}

// Everything that a caller has begun ends with its credential or its rights, on every transport, in an orderly way.
func TestStreams_endWithTheirCallers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, people, data := filepath.Join(dir, "tokens.csv"), userFile(t), filepath.Join(dir, "data")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(tokens, "jane-token,jane,1,staff\njoe-token,joe,2\n")
	instance, _ := runIn(standing.WithPeriod(context.Background(), 50*time.Millisecond), t, streaming(), annex.Options{
		Storage: memory.Storage(), DataDir: data, TokenAuthFile: tokens, Login: annex.LoginOptions{UserFile: people},
	})
	admin := clientOf(t, instance)
	admin.createStreaming()
	admin.post(clusterRolesPath, rbacObject("ClusterRole", "all", rules(
		fields{"verbs": []string{"*"}, "apiGroups": []string{"*"}, "resources": []string{"*"}},
		fields{"verbs": []string{"*"}, "nonResourceURLs": []string{"*"}},
	))).want(201)
	admin.post(clusterBindings, bind("ClusterRoleBinding", "staff", "ClusterRole/all", "@staff", "@robots", "@system:serviceaccounts")).
		want(201)
	admin.post(clusterBindings, bind("ClusterRoleBinding", "joe", "ClusterRole/all", "joe")).want(201)
	jane, joe := admin.stranger("jane-token"), admin.stranger("joe-token")
	for _, c := range []*client{jane, joe} {
		c.until(200, func() *answer { return c.get("/orders/1") })
	}
	bystander := admin.watch(widgetsPath + "?watch=1&resourceVersion=0")

	endsWhen(t, jane, "the token is out of the file", allStreamed(), func() { write(tokens, "joe-token,joe,2\nother,jane,1,staff\n") })
	endsWhen(t, joe, "the binding is deleted", allStreamed(), func() { admin.delete(clusterBindings+"/joe", nil).want(200) })

	few := []streamed{allStreamed()[0], allStreamed()[6]}
	admin.post(accountsPath, account("robot")).want(201)
	endsWhen(t, admin.as("robot"), "the service account is deleted", few, func() { admin.delete(accountsPath+"/robot", nil).want(200) })

	alice := admin.stranger("").grant("grant_type", "password", "username", "alice", "password", "wonderland").granted()
	endsWhen(t, admin.stranger(alice.Access), "the session is revoked", few, func() {
		form := url.Values{"token": {alice.Refresh}}.Encode()
		admin.stranger("").do(http.MethodPost, "/oauth/revoke", form, "Content-Type", "application/x-www-form-urlencoded").want(200)
	})
	alice = admin.stranger("").grant("grant_type", "password", "username", "alice", "password", "wonderland").granted()
	endsWhen(t, admin.stranger(alice.Access), "the user is disabled", few, func() {
		content, err := os.ReadFile(people)
		if err != nil {
			t.Fatal(err)
		}
		write(people, strings.Replace(string(content), "{name: alice,", "{name: alice, disabled: true,", 1))
	})

	users := certs.OpenUsers(filepath.Join(data, "cert"), nil)
	credentials, err := users.Create(certs.NewUser{Name: "carol", Groups: []string{"staff"}})
	if err != nil {
		t.Fatal(err)
	}
	with := func(i issued) *client {
		c := admin.stranger("")
		c.config.CertData, c.config.KeyData = i.cert, i.key
		return connect(t, c.config)
	}
	endsWhen(t, with(issued{credentials.PEM(), credentials.PEM()}), "the certificate is revoked", few, func() {
		if _, err := users.Revoke(t.Context(), certs.Revocation{Name: "carol"}); err != nil {
			t.Fatal(err)
		}
	})
	short := authorityIn(t, filepath.Join(data, "cert")).issue(t, "dave", time.Now().Add(2*time.Second), "staff")
	endsWhen(t, with(short), "the certificate expires", few, func() {})

	write(tokens, "root-token,root,3,staff\n")
	root := admin.stranger("root-token")
	root.until(200, func() *answer { return root.get("/orders/1") })
	acting := rest.CopyConfig(root.config)
	acting.Impersonate = rest.ImpersonationConfig{UserName: "erin", Groups: []string{"robots"}}
	endsWhen(t, connect(t, acting), "the caller may not impersonate any more", few, func() {
		admin.delete(clusterBindings+"/staff", nil).want(200)
	})

	admin.create("last")
	testwait.Until(t, "the administrator's watch goes on", func() bool { return bystander.next().name() == "last" })
}
