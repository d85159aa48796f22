package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/transcript"
)

// TestTranscripts replays what is in testdata/PROGRAM/*.txt on a server of each transcript's own.
// With -update the outputs are rewritten, to be reviewed as a diff.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		program := filepath.Base(filepath.Dir(file))
		t.Run(program+"/"+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			transcript.Test(t, terminal(t, startServer(t, program)), file, *update)
		})
	}
}

// terminal has the server's administrator at it.
func terminal(t *testing.T, s *server) *transcript.Terminal {
	return &transcript.Terminal{
		Dir: t.TempDir(), Bin: bin, Kubeconfig: s.kubeconfig(), Server: s.url(),
		Words: strings.NewReplacer(s.dir, "<data>"),
	}
}
