// Package stream connects clients with what objects stand for, as pods do: logs (Logs), commands
// that are run (Exec) or attached to (Attach), forwarded ports (PortForward) and HTTP (Proxy). Each
// is a subresource of a kind and a function of the user's, for annex.KindBuilder.Subresources:
//
//	annex.KindOf[v1.Machine, v1.MachineList]("machines", v1.API).
//		Subresources(stream.Logs("log", logOfMachine), stream.Exec("exec", runInMachine))
//
// Discovery names each subresource after its options, such as ExecOptions. Hooks of AdmitConnect
// see them, and so do webhooks, policies and the audit.
//
// The rest is about sessions, which all but logs are. Their protocols are those of Kubernetes, so that what is built with
// client-go's remotecommand and
// portforward works unmodified: WebSockets (v5 and v4, and those that browsers use), SPDY, and SPDY
// in a WebSocket. They need HTTP/1.1, which such clients ask for although the server offers
// HTTP/2.
//
// Callers need the verb create on the resource with the subresource, such as machines/exec, and
// those who begin with a GET, as WebSockets do, get as well. Proxy needs the verb of each method.
//
// Every session has a context that ends with its client, within a second on Linux even while its
// input is not read (but later once that fills the buffers of the network), with a limit, and with the server: then functions
// have ten seconds to
// end, after which the connection is closed. Sessions are long-running requests: they have
// no deadline but Total and Idle, and the limits of requests in flight are not for them. No more is
// read than is used: a function that does not read makes its client wait. A session over SPDY needs
// several times the memory of one over a WebSocket, for the compression of its headers.
// A function that panics ends its own session with an internal error, and nothing else.
//
// With the functions whose names end in At, an agent serves instead of the program: something that
// speaks SPDY as a kubelet does. Clients may speak all protocols then, too.
//
// Only servers that import the package link it.
package stream
