package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/testing/transcript"
)

// servedWith matches the line of a transcript with the flags of its server.
var servedWith = regexp.MustCompile(`(?m)^Served with (--.*)\n`)

// TestTranscripts replays testdata/PROGRAM/*.txt, each transcript on a server of its own with the flags that the
// transcript names. The ports 8443 and 6080 and the folder <data> in its commands stand for those of the server. With
// -update the outputs are rewritten, to be reviewed as a diff.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		program := filepath.Base(filepath.Dir(file))
		t.Run(program+"/"+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			insecure := freePort(t)
			password := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(password, []byte("P@ssw0rd\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var flags []string
			if said := servedWith.FindStringSubmatch(readFile(t, file)); said != nil {
				flags = strings.Fields(strings.NewReplacer("6080", insecure, "<password>", password).Replace(said[1]))
			}
			s := startServer(t, program, flags...)
			at := terminal(t, s)
			at.Typed = strings.NewReplacer(
				"127.0.0.1:8443",
				fmt.Sprint("127.0.0.1:", s.port),
				"127.0.0.1:6080",
				"127.0.0.1:"+insecure,
				"<data>",
				s.dir,
			)
			transcript.Test(t, at, file, *update)
		})
	}
}

// terminal returns a terminal of the server's administrator.
func terminal(t *testing.T, s *server) *transcript.Terminal {
	return &transcript.Terminal{
		Dir: t.TempDir(), Bin: bin, Kubeconfig: s.kubeconfig(), Server: s.url(),
		Words: strings.NewReplacer(s.dir, "<data>"),
	}
}
