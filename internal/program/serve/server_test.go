package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// watched is the storage memory. It records when its journals are opened and closed.
type watched struct {
	driver.Journal
	steps *[]string
}

func (w watched) OpenJournal(ctx context.Context, env driver.Env) (journal.Journal, error) {
	j, err := w.Journal.OpenJournal(ctx, env)
	*w.steps = append(*w.steps, "open storage")
	return watchedJournal{j, w.steps}, err
}

type watchedJournal struct {
	journal.Journal
	steps *[]string
}

func (j watchedJournal) Close() error {
	*j.steps = append(*j.steps, "close storage")
	return j.Journal.Close()
}

// resolved returns the plan of a server that records in steps when its storage is opened and closed.
func resolved(t *testing.T, server *define.Server, options config.Options, steps *[]string) *plan.Plan {
	t.Helper()
	server.Name = "shop"
	options.Storage = watched{memory.Storage(), steps}
	p, err := plan.Resolve(&definition.Definition{Server: server, NewEnv: noEnv}, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := listenOn(t, "127.0.0.1:0")
	defer l.Close()
	return l.Addr().String()
}

func listenOn(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNew_failureLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	fails := errors.New("it fails")
	for _, step := range []struct {
		name string
		// spoil makes the step fail. The plan is valid: only opening the parts shows the mistake.
		spoil func(*define.Server, *config.Options)
		want  string
		// early steps come before the storages are opened.
		early bool
	}{
		{"encryption", func(_ *define.Server, o *config.Options) { o.EncryptionConfigFile = missing }, missing, true},
		{"audit", func(_ *define.Server, o *config.Options) { o.Audit.PolicyFile, o.Audit.Log.Path = missing, "-" }, missing, true},
		{"tracing", func(_ *define.Server, o *config.Options) { o.TracingConfigFile = missing }, missing, true},
		{"certificates", func(_ *define.Server, o *config.Options) { o.ClientCAFile = missing }, missing, false},
		{"listeners", func(_ *define.Server, o *config.Options) { o.ListenUnix = filepath.Join(missing, "socket") }, missing, false},
		{"mode", func(_ *define.Server, o *config.Options) { o.AuthorizationConfigFile = missing }, missing, false},
		{"last file of the mode", func(_ *define.Server, o *config.Options) { o.TokenAuthFile = missing }, missing, false},
		{"handlers", func(s *define.Server, _ *config.Options) {
			s.Handlers = []define.Handler{{Path: "/own", New: func(any) (http.Handler, error) { return nil, fails }}}
		}, fails.Error(), false},
		{"admission plugins", func(s *define.Server, _ *config.Options) {
			s.AdmissionPlugins = []define.AdmissionPlugin{{Name: "Own", New: func(any, io.Reader) (admission.Interface, error) { return nil, fails }}}
		}, fails.Error(), false},
		{"kubeconfig", func(_ *define.Server, o *config.Options) {
			if err := os.MkdirAll(filepath.Join(o.DataDir, "kubeconfig", "full"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "kubeconfig", false},
	} {
		t.Run(step.name, func(t *testing.T) {
			t.Parallel()
			dir, address := filepath.Join(t.TempDir(), "data"), freeAddress(t)
			server, options := &define.Server{}, config.Options{DataDir: dir, Listen: address}
			step.spoil(server, &options)
			var steps []string
			_, err := New(t.Context(), resolved(t, server, options, &steps), noEnv)
			if err == nil || !strings.Contains(err.Error(), step.want) {
				t.Errorf("got %v", err)
			}
			want := []string{"open storage", "close storage"}
			if step.early {
				want = nil
			}
			if !slices.Equal(steps, want) {
				t.Errorf("storage: %q, want %q", steps, want)
			}
			_ = listenOn(t, address).Close()
			lock, err := lockExisting(dir)
			if err != nil {
				t.Fatal(err)
			}
			_ = lock.Close()
		})
	}
}

// refusing is standalone that cannot be opened, after it has opened a part.
type refusing struct {
	standalone
	err   error
	steps *[]string
}

func (m refusing) open(_ context.Context, b base) (modeFiles, error) {
	b.closing.run(func() { *m.steps = append(*m.steps, "close mode") })
	return nil, m.err
}

func TestNewOpened_failureOfMode_closesItBeforeStorages(t *testing.T) {
	t.Parallel()
	var steps []string
	p := resolved(t, &define.Server{}, config.Options{}, &steps)
	closing, refusal := &closers{}, errors.New("refused")
	if _, err := newOpened(t.Context(), p, refusing{standalone{plan: p}, refusal, &steps}, closing); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	if err := closing.close(); err != nil {
		t.Error(err)
	}
	if want := []string{"open storage", "close mode", "close storage"}; !slices.Equal(steps, want) {
		t.Errorf("got %q, want %q", steps, want)
	}
}

func TestServer_closedOnce(t *testing.T) {
	t.Parallel()
	var steps []string
	s, err := New(t.Context(), resolved(t, &define.Server{}, config.Options{}, &steps), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"open storage", "close storage"}; !slices.Equal(steps, want) {
		t.Errorf("got %q, want %q", steps, want)
	}
	if err := s.Run(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "already run or closed") {
		t.Errorf("a closed server runs: %v", err)
	}
}
