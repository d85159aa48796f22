// Package streams speaks the protocols in which clients of Kubernetes run commands and forward
// ports, as the server: streams over WebSockets and SPDY, with half close, sizes of terminals,
// and how it ended. It knows requests and connections, but no kinds and no objects.
//
// Upstream's servers of these protocols (k8s.io/cri-streaming) are a kubelet's: every error is an
// internal one there, forwarded ports have no context, and WebSockets are without v5, whose
// translation to SPDY costs a second connection in memory. The libraries below them are used: SPDY
// of k8s.io/streaming, WebSockets of gorilla as in k8s.io/apiserver, tunnels of k8s.io/client-go.
package streams
