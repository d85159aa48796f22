package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// The compared backends. All are reached through storage.Interface.
const (
	memoryBackend   = "memory"
	embeddedBackend = "embedded"
	etcdBackend     = "etcd"        // upstream's store, bare
	cachedBackend   = "etcd+cacher" // and with its watch cache
)

var durable = []string{embeddedBackend, etcdBackend, cachedBackend}

// system is an open backend with its process, if it has one.
type system struct {
	store.Backend
	server *exec.Cmd // of etcd, else nil
}

// forEach runs a benchmark on some backends, each in a directory of its own.
func forEach(b *testing.B, backends []string, run func(b *testing.B, s *system)) {
	for _, name := range backends {
		b.Run("backend="+name, func(b *testing.B) {
			s, err := openSystem(b, name, b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer s.close(b)
			run(b, s)
		})
	}
}

func openSystem(b *testing.B, name, dir string) (*system, error) {
	switch name {
	case memoryBackend:
		return openCore(b, memory.New())
	case embeddedBackend:
		j, err := embedded.Open(filepath.Join(dir, "store"), embedded.Options{})
		if err != nil {
			return nil, err
		}
		return openCore(b, j)
	}
	server, endpoint, err := startEtcd(b, dir)
	if err != nil {
		return nil, err
	}
	options := etcd.Options{Endpoints: []string{endpoint}, NoWatchCache: name != cachedBackend, StartTimeout: time.Minute}
	backend, err := etcd.Open(b.Context(), options)
	return &system{Backend: backend, server: server}, err
}

func openCore(b *testing.B, j journal.Journal) (*system, error) {
	core, err := mvcc.Open(b.Context(), j, coreOptions(b))
	return &system{Backend: core}, err
}

// valuesEnv and decodedEnv change two memory budgets of the core, in bytes.
const (
	valuesEnv  = "ANNEX_BENCH_VALUES"
	decodedEnv = "ANNEX_BENCH_DECODED"
)

func coreOptions(b *testing.B) mvcc.Options {
	bytes := func(name string) int64 {
		text := os.Getenv(name)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		return n
	}
	return mvcc.Options{ValueBytes: bytes(valuesEnv), ObjectCacheBytes: bytes(decodedEnv)}
}

// startEtcd starts a server process and returns its endpoint.
func startEtcd(b *testing.B, dir string) (*exec.Cmd, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	server := exec.Command(program)
	server.Env = append(os.Environ(), etcdDirEnv+"="+filepath.Join(dir, "etcd"))
	server.Stderr = os.Stderr
	stdin, err := server.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := server.Start(); err != nil {
		return nil, "", err
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = server.Wait()
	})
	endpoint, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("etcd did not start: %w", err)
	}
	return server, strings.TrimSpace(endpoint), nil
}

func (s *system) close(b *testing.B) {
	if err := s.Close(); err != nil {
		b.Error(err)
	}
}

// pods opens the benchmarks' resource and waits until it can be read.
func (s *system) pods(b *testing.B, resource store.Resource) storage.Interface {
	opened, err := s.Open(resource)
	if err != nil {
		b.Fatal(err)
	}
	for opened.ReadinessCheck() != nil {
		select {
		case <-time.After(time.Millisecond):
		case <-b.Context().Done():
			b.Fatal("the storage does not get ready")
		}
	}
	return opened
}
