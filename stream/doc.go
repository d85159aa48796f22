// Package stream connects clients with what objects stand for, as pods do: logs (Logs). Each is a
// subresource of a kind and a function of the user's, for annex.KindBuilder.Subresources:
//
//	annex.KindOf[v1.Machine, v1.MachineList]("machines", v1.API).
//		Subresources(stream.Logs("logs", logOfMachine))
//
// Discovery names each subresource after its options, such as LogOptions. Hooks of AdmitConnect see
// requests, and so do webhooks, policies and the audit.
//
// Only servers that import the package link it.
package stream
