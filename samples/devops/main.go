// Command devops serves pipelines and their runs, as custom resources in two versions, and as a REST API for front
// ends. Its controller runs them as processes on its own machine.
package main

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/program"
)

//go:embed config/crd/devops.devops.io_*.yaml
var definitions embed.FS

func main() {
	runs, err := runsOf(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "devops:", err)
		os.Exit(2)
	}
	program.Main(server(runs))
}

// crds returns the folder of the CustomResourceDefinitions.
func crds() fs.FS {
	folder, err := fs.Sub(definitions, "config/crd")
	if err != nil {
		panic(err) // the path is valid
	}
	return folder
}

// server returns the definition of the server, for the program and its tests.
func server(runs *runs) annex.Server {
	return annex.Server{
		Name:         "devops",
		ControlPlane: controlplane.New(controlplane.Options{CRDFiles: crds()}),
		Query:        annex.Query{Prefix: queries},
		Controllers:  []annex.Controller{{Name: "pipelineruns", Run: runs.control}},
		Handlers: []annex.Handler{
			{Path: "/convert", Handler: http.HandlerFunc(answerConversion)},
			{
				Path:        kapisPath,
				New:         func(env *annex.Env) (http.Handler, error) { return newKapis(env.CallerConfig(), runs.dir) },
				Resource:    resourceOf,
				LongRunning: longRunning,
				OpenAPI:     kapisDocument,
			},
		},
	}
}
