// Package stream declares subresources that stream, as those of pods do: logs (Logs), commands that are run (Exec) or
// attached to (Attach), forwarded ports (PortForward) and HTTP (Proxy). Each is a subresource of a kind and a
// function of the user's, for annex.KindBuilder.Subresources:
//
//	annex.KindOf[v1.Machine, v1.MachineList]("machines", v1.API).
//		Subresources(stream.Logs("log", logOfMachine), stream.Exec("exec", runInMachine))
//
// Discovery names each subresource after its options, such as ExecOptions. Hooks of AdmitConnect see the options, and
// so do webhooks, policies and the audit.
//
// All subresources but logs are sessions, and the rest of this comment is about sessions. Their protocols are those
// of Kubernetes, so clients built with client-go's remotecommand and portforward work unmodified: WebSockets (v5 and
// v4, and the protocols that browsers use), SPDY, and SPDY in a WebSocket. Sessions need HTTP/1.1; such clients ask
// for it although the server offers HTTP/2.
//
// Callers need the verb create on the resource with the subresource, such as machines/exec. A session that begins
// with a GET, as a WebSocket does, needs the verb get as well. Proxy needs the verb of each method.
//
// The context of a session ends with its client, at a limit, and when the server stops. On Linux it ends within a
// second after the client is gone, even while the session's input is not read; if unread input fills the buffers of
// the network, it ends later. The function then has ten seconds to end before the connection is closed. Sessions are
// long-running requests: they have no deadline but Total and Idle, and do not count as requests in flight. The server
// reads no more than the function uses: a function that does not read makes its client wait. A session over SPDY
// needs several times the memory of one over a WebSocket, because SPDY compresses headers. A function that panics
// ends its own session with an internal error, and nothing else.
//
// Functions whose names end in At leave the session to an agent: a remote server that speaks SPDY as a kubelet does.
// Clients may still use all of the protocols.
//
// Only servers that import this package link it.
package stream
