// Command plane is annex serve without the kinds of workloads, which compiles in half of the time: make console-short uses the
// console of such a server.
package main

import (
	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/program"
)

func main() {
	program.Main(annex.Server{Name: "annex", Title: "Annex", ControlPlane: controlplane.New(controlplane.Options{})})
}
