// Package v1 holds the Go types of Operation, the kind by which clients follow actions that
// take longer than a request may. It links no server: clients import it alone.
//
// A server serves the kind in a group version of its own, so that several servers behind one
// cluster have one each: see package operation. The group named here is none that is served.
//
// +groupName=operation.annexapi.example
package v1

//go:generate go run -C ../../cmd/annex . generate ../../operation/v1
