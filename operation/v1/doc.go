// Package v1 holds the Go types of Operation, the kind through which clients follow actions that take longer than a
// request may. It links no server, so clients can import it alone.
//
// Each server serves the kind in a group version of its own, so that several servers behind one cluster can each have
// theirs: see package operation. No server serves the group named here.
//
// +groupName=operation.annexapi.example
package v1

//go:generate go run -C ../../cmd/annex . generate ../../operation/v1
