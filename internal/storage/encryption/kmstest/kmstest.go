// Package kmstest is a key management plugin for tests. It speaks the KMS v2 protocol of Kubernetes over a unix socket,
// and keeps its keys in memory. Tests can start and stop it, rotate its key and make it lose keys.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// Plugin is a key management plugin. Start, Stop and Rotate may be called during a test.
type Plugin struct {
	socket string

	mu      sync.Mutex
	current string // ID of the key for encryption
	keys    map[string]cipher.AEAD
	server  *grpc.Server
	served  chan error
}

var _ service.Service = (*Plugin)(nil)

// New returns a plugin with one key. Start starts it; the end of the test stops it.
func New(t testing.TB, keyID string) *Plugin {
	t.Helper()
	// The path of a socket is limited to about a hundred bytes.
	dir, err := os.MkdirTemp("", "kms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Plugin{socket: filepath.Join(dir, "kms.sock"), keys: map[string]cipher.AEAD{}}
	p.Rotate(t, keyID)
	t.Cleanup(func() { p.Stop(t) })
	return p
}

// Endpoint returns the endpoint for a configuration file.
func (p *Plugin) Endpoint() string { return "unix://" + p.socket }

// Start makes the plugin listen on its socket.
func (p *Plugin) Start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.server, p.served = grpc.NewServer(), make(chan error, 1)
	kmsapi.RegisterKeyManagementServiceServer(p.server, service.NewGRPCService(p.socket, time.Second, p))
	go func(server *grpc.Server, served chan<- error) { served <- server.Serve(listener) }(p.server, p.served)
}

// Stop stops a running plugin.
func (p *Plugin) Stop(t testing.TB) {
	t.Helper()
	if p.server == nil {
		return
	}
	p.server.Stop()
	if err := <-p.served; err != nil {
		t.Errorf("key management plugin: %v", err)
	}
	p.server = nil
}

// Rotate makes the plugin encrypt with the key of an ID from now on. It creates a missing key.
func (p *Plugin) Rotate(t testing.TB, keyID string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = keyID
	if p.keys[keyID] != nil {
		return
	}
	var secret [32]byte
	rand.Read(secret[:])
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		t.Fatal(err)
	}
	if p.keys[keyID], err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}
}

// Forget removes a key.
func (p *Plugin) Forget(keyID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, keyID)
}

// Status implements service.Service.
func (p *Plugin) Status(context.Context) (*service.StatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: p.current}, nil
}

// Encrypt implements service.Service.
func (p *Plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := p.keys[p.current]
	nonce := make([]byte, key.NonceSize())
	rand.Read(nonce)
	return &service.EncryptResponse{Ciphertext: key.Seal(nonce, nonce, data, nil), KeyID: p.current}, nil
}

// Decrypt implements service.Service.
func (p *Plugin) Decrypt(_ context.Context, _ string, request *service.DecryptRequest) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := p.keys[request.KeyID]
	if key == nil {
		return nil, fmt.Errorf("there is no key %s", request.KeyID)
	}
	if len(request.Ciphertext) < key.NonceSize() {
		return nil, errors.New("too short")
	}
	return key.Open(nil, request.Ciphertext[:key.NonceSize()], request.Ciphertext[key.NonceSize():], nil)
}
