// Package streams implements the server side of the protocols in which Kubernetes clients run commands and forward
// ports: streams over WebSockets and SPDY, with half-close, terminal sizes and a final status. It works on requests
// and connections, and has no notion of kinds and objects.
//
// Upstream's servers of these protocols (k8s.io/cri-streaming) are made for kubelets: they report every error as an
// internal one, forwarded ports have no context, and WebSockets do not support v5, whose translation to SPDY needs a
// second connection in memory. This package uses the libraries below them: SPDY of k8s.io/streaming, WebSockets of
// gorilla as in k8s.io/apiserver, and tunnels of k8s.io/client-go.
package streams
