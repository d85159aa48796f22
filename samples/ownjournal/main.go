// Command ownjournal serves notes from a custom storage: see package logfile.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/annexapi/annex"

	notesv1 "example.com/ownjournal/apis/notes/v1"
	"example.com/ownjournal/logfile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ownjournal:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	instance, err := annex.New(ctx, server(), options("data"))
	if err != nil {
		return err
	}
	return instance.Run(ctx, func() {
		fmt.Printf("kubectl --kubeconfig %s get notes\n", instance.Kubeconfig())
	})
}

// server returns the definition of the server, for the program and its tests.
func server() annex.Server {
	return annex.Server{
		Name: "ownjournal",
		Groups: []annex.Group{{
			Name: "notes.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[notesv1.Note, notesv1.NoteList]("notes", notesv1.API).
					Columns(annex.Column[notesv1.Note]{Name: "Text", Value: func(n *notesv1.Note) any { return n.Spec.Text }}),
			},
		}},
	}
}

// options keep all data in the log in a data directory.
func options(dataDir string) annex.Options {
	return annex.Options{
		DataDir: dataDir,
		Listen:  "127.0.0.1:8443",
		Storage: logfile.Dir(""),
	}
}
