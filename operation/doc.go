// Package operation declares actions that take longer than a request may: seconds to hours. Such an action is
// answered at once with an Operation. Clients follow this object, cancel it and retry it; it holds the action's
// progress, log and result. An operation survives restarts of the server, and exactly one of several replicas carries
// it out.
//
// A server with such an action serves the kind Operation in a group version of its own, declared by one line among
// the kinds of a group:
//
//	annex.Group{Name: "shop.example.com", Kinds: []annex.Kind{
//		annex.KindOf[v1.Report, v1.ReportList]("reports", v1.API).
//			Subresources(operation.Action("render", render)),
//		operation.Kind(v1.API, operation.Options{}),
//	}}
//
// Clients that only follow operations import package operation/v1, which links no server.
package operation
