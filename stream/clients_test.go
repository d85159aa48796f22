package stream_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

var codecs = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()

// plain is a connection that io.Copy copies without the kernel's pipes. Go keeps such pipes for later copies, and
// until a garbage collection they would count as descriptors.
type plain struct{ io.ReadWriter }

// killable is a proxy between clients and a server that can kill clients.
type killable struct {
	mu    sync.Mutex
	conns []net.Conn
}

// between returns a configuration whose connections kill closes.
func (k *killable) between(t *testing.T, config *rest.Config) *rest.Config {
	t.Helper()
	server := strings.TrimPrefix(config.Host, "https://")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		k.kill()
		all.Wait()
	})
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			conn, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, client, conn)
			k.mu.Unlock()
			all.Go(func() { _, _ = io.Copy(plain{conn}, plain{client}) })
			all.Go(func() { _, _ = io.Copy(plain{client}, plain{conn}) })
		}
	})
	config = rest.CopyConfig(config)
	config.Host = "https://" + listener.Addr().String()
	config.Dial = nil
	return config
}

// kill closes all connections, as the kernel closes those of a killed process.
func (k *killable) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, conn := range k.conns {
		conn.Close()
	}
}
