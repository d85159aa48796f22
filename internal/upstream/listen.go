package upstream

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// streamsPerConnection bounds the requests at once on one HTTP/2 connection. It
// is high because an aggregator sends those of all its clients over one.
const streamsPerConnection = 1000

// Listening is a listener whose connections are being answered.
type Listening struct {
	idle, closed <-chan struct{}
}

// Wait returns when the listener is closed and its connections are idle or out of
// time, after the stop channel was closed.
func (l Listening) Wait() {
	<-l.closed
	<-l.idle
}

// ServeTLS answers HTTPS on a listener until stop is closed, and then waits for
// requests in progress for at most the grace given. Certificates are read anew
// when they change.
func ServeTLS(l net.Listener, handler http.Handler, serving dynamiccertificates.CertKeyContentProvider, clients dynamiccertificates.CAContentProvider, grace time.Duration, stop <-chan struct{}) (Listening, error) {
	info := &server.SecureServingInfo{
		Listener:                     l,
		Cert:                         serving,
		ClientCA:                     clients,
		HTTP2MaxStreamsPerConnection: streamsPerConnection,
	}
	idle, closed, err := info.Serve(handler, grace, stop)
	if err != nil {
		return Listening{}, fmt.Errorf("serve HTTPS: %w", err)
	}
	return Listening{idle, closed}, nil
}

// ServePlain is ServeTLS without TLS.
func ServePlain(l net.Listener, handler http.Handler, grace time.Duration, stop <-chan struct{}) (Listening, error) {
	plain := &http.Server{
		Handler:           handler,
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
	}
	idle, closed, err := server.RunServer(plain, l, grace, stop)
	if err != nil {
		return Listening{}, fmt.Errorf("serve HTTP: %w", err)
	}
	return Listening{idle, closed}, nil
}
