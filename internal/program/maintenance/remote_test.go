package maintenance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/store"
)

// serve returns Remote tools for a server that works on a backend.
func serve(t *testing.T, backend store.Maintenance) (local *maintenance.Local, remote *maintenance.Remote) {
	t.Helper()
	local = &maintenance.Local{Server: "shop", Storages: []maintenance.Storage{{Name: "memory", Backend: backend}}}
	mux := http.NewServeMux()
	for path, handler := range maintenance.Handlers(local) {
		mux.Handle(path, handler)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	remote, err := maintenance.Dial(&rest.Config{Host: server.URL}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Close() })
	return local, remote
}

func TestRemote_matchesLocal(t *testing.T) {
	c := core(t)
	put(t, c, objects(300)...)
	local, remote := serve(t, c)
	ctx := t.Context()

	here, err := local.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	there, err := remote.Stats(ctx)
	if err != nil || !reflect.DeepEqual(here, there) {
		t.Errorf("stats: %+v, %v, want %+v", there, err, here)
	}
	verified, err := remote.Verify(ctx, func(f maintenance.Finding) {
		if !f.Warning {
			t.Errorf("found %v", f)
		}
	})
	if err != nil || verified.Objects != 300 || verified.Warnings != 1 {
		t.Errorf("verify: %+v, %v", verified, err)
	}
	var file bytes.Buffer
	contents, err := maintenance.BackupTo(ctx, remote, &file)
	if err != nil || contents.Objects != 300 {
		t.Errorf("backup: %+v, %v", contents, err)
	}
	if _, err := remote.Compact(ctx, 1000); !errors.Is(err, maintenance.ErrAhead) {
		t.Errorf("compact ahead: %v", err)
	}
	if done, err := remote.Compact(ctx, 0); err != nil || done[0].Revision != c.CompactedRevision() || c.CompactedRevision() != 301 {
		t.Errorf("compact: %+v, %v", done, err)
	}
}

// damaged is a backend whose values cannot be read to the end.
type damaged struct{ store.Maintenance }

func (d damaged) Snapshot(ctx context.Context) (store.Snapshot, error) {
	s, err := d.Maintenance.Snapshot(ctx)
	return cut{s}, err
}

type cut struct{ store.Snapshot }

func (c cut) Values(ctx context.Context) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		n := 0
		for v, err := range c.Snapshot.Values(ctx) {
			if n++; n > 2000 {
				yield(store.Value{}, errors.New("revision 2001 cannot be read"))
				return
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

func TestRemote_damagedBackend(t *testing.T) {
	local, remote := serve(t, core(t))
	local.Readable = func(context.Context) error { return fmt.Errorf("no key: %w", maintenance.ErrUnreadable) }
	here := local.Rewrite(t.Context(), nil, func(maintenance.Rewritten) {})
	there := remote.Rewrite(t.Context(), nil, func(maintenance.Rewritten) {})
	if !errors.Is(there, maintenance.ErrUnreadable) || there.Error() != here.Error() {
		t.Errorf("got %v, want %v", there, here)
	}
}

// away is a transformer whose plugin does not respond.
type away struct{ value.Transformer }

func (away) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, fmt.Errorf("decrypt: %w", status.Error(codes.DeadlineExceeded, "the plugin does not answer"))
}

func TestVerify_pluginAway(t *testing.T) {
	c := core(t)
	put(t, c, store.Value{Key: "/pods/ns/a", Data: []byte("k8s:enc:kms:v2:vault:something")})
	local := &maintenance.Local{
		Server:   "shop",
		Storages: []maintenance.Storage{{Name: "memory", Backend: c}},
		Resources: []maintenance.Resource{
			{Resource: schema.GroupResource{Resource: "pods"}, Prefix: "/pods", In: "memory", Transformer: away{}},
		},
	}
	for _, records := range []maintenance.Records{nil, c.Scan} {
		local.Storages[0].Records = records
		verified, err := local.Verify(t.Context(), func(f maintenance.Finding) { t.Errorf("found %v", f) })
		if err == nil ||
			!strings.Contains(err.Error(), `/pods/ns/a is encrypted with provider kms v2 "vault", which does not answer`) ||
			verified.Damages != 0 {
			t.Errorf("got %+v, %v", verified, err)
		}
	}
}

func TestRemote_brokenOff(t *testing.T) {
	c := core(t)
	for _, v := range objects(3000) {
		v.Data = bytes.Repeat(v.Data, 200)
		put(t, c, v)
	}
	_, remote := serve(t, damaged{c})
	if _, err := maintenance.BackupTo(
		t.Context(),
		remote,
		io.Discard,
	); err == nil || !strings.Contains(err.Error(), "the server aborted the request") ||
		!strings.Contains(err.Error(), "revision 2001 cannot be read") {
		t.Errorf("backup: %v", err)
	}
	if _, err := remote.Verify(t.Context(), func(maintenance.Finding) {}); err == nil {
		t.Error("verify of what cannot be read to its end succeeded")
	}
	if _, err := remote.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), "revision 2001 cannot be read") {
		t.Errorf("stats: %v", err)
	}
}

// slow is a backend that reads slowly after its first objects.
type slow struct{ store.Maintenance }

func (s slow) Snapshot(ctx context.Context) (store.Snapshot, error) {
	snapshot, err := s.Maintenance.Snapshot(ctx)
	return paused{snapshot}, err
}

type paused struct{ store.Snapshot }

func (p paused) Values(ctx context.Context) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		n := 0
		for v, err := range p.Snapshot.Values(ctx) {
			if n++; n == 2000 {
				select {
				case <-time.After(time.Hour):
				case <-ctx.Done():
				}
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// pipes passes the other end of a pipe to the server for every connection.
type pipes struct{ conns chan net.Conn }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// An HTTP/2 server ends a response at its deadline even if there is nothing to send.
func TestRemote_slowServer(t *testing.T) {
	for _, protocol := range []string{"HTTP/1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := core(t)
				for _, v := range objects(3000) {
					v.Data = bytes.Repeat(v.Data, 100)
					put(t, c, v)
				}
				mux := http.NewServeMux()
				for path, handler := range maintenance.Handlers(&maintenance.Local{Storages: []maintenance.Storage{{Name: "memory",
					Backend: slow{c}}}}) {
					mux.Handle(path, handler)
				}
				var protocols http.Protocols
				protocols.SetHTTP1(protocol == "HTTP/1")
				protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
				connections := pipes{make(chan net.Conn)}
				server := &http.Server{Handler: mux, Protocols: &protocols}
				var serving sync.WaitGroup
				serving.Go(func() { _ = server.Serve(connections) })
				transport := &http.Transport{Protocols: &protocols, DialContext: connections.dial}
				defer serving.Wait()
				defer server.Close()
				defer close(connections.conns)
				defer transport.CloseIdleConnections()

				remote, err := maintenance.Dial(&rest.Config{Host: "http://shop", Transport: transport}, "")
				if err != nil {
					t.Fatal(err)
				}
				defer remote.Close()
				if contents, err := maintenance.BackupTo(t.Context(), remote, io.Discard); err != nil || contents.Objects != 3000 {
					t.Errorf("backup: %d objects, %v", contents.Objects, err)
				}
			})
		})
	}
}

// held is a backend whose snapshots block until the test releases them.
type held struct {
	store.Maintenance
	reading chan struct{}
	release chan struct{}
}

func (h held) Snapshot(ctx context.Context) (store.Snapshot, error) {
	h.reading <- struct{}{}
	<-h.release
	return h.Maintenance.Snapshot(ctx)
}

func TestHandlers_maxRequests(t *testing.T) {
	h := held{core(t), make(chan struct{}), make(chan struct{})}
	_, remote := serve(t, h)
	done := make(chan error)
	for range 4 {
		go func() {
			_, err := remote.Stats(t.Context())
			done <- err
		}()
		<-h.reading
	}
	backups := make(chan error)
	for range 4 {
		go func() {
			_, err := maintenance.BackupTo(t.Context(), remote, io.Discard)
			backups <- err
		}()
		<-h.reading // a backup has its own slot, even while all others are taken
	}
	refused := (*maintenance.Refused)(nil)
	if _, err := maintenance.BackupTo(
		t.Context(),
		remote,
		io.Discard,
	); !errors.As(err, &refused) ||
		refused.Code != http.StatusTooManyRequests {
		t.Errorf("the fifth backup: %v", err)
	}
	if _, err := remote.Stats(t.Context()); !errors.As(err, &refused) || refused.Code != http.StatusTooManyRequests {
		t.Errorf("the fifth: %v", err)
	}
	close(h.release)
	for range 4 {
		if err := errors.Join(<-done, <-backups); err != nil {
			t.Error(err)
		}
	}
}
