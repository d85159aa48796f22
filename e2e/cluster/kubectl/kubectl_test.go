package kubectl

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/transcript"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata from what kubectl prints of kube-apiserver now")

// kubectl prints the same for kube-apiserver and for `annex serve`. Transcripts share the servers, and each has a
// namespace of its own.
func TestKubectl_transcripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []struct {
		name   string
		config *rest.Config
	}{{"kube-apiserver", host.Admin()}, {"annex", alone.ServeControlPlane(t)}} {
		for _, file := range files {
			t.Run(server.name+"/"+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				dir := t.TempDir()
				kubeconfig := filepath.Join(dir, "kubeconfig")
				if err := kube.WriteKubeconfig(kubeconfig, server.config); err != nil {
					t.Fatal(err)
				}
				terminal := &transcript.Terminal{Dir: dir, Bin: bin, Kubeconfig: kubeconfig, Server: server.config.Host}
				transcript.Test(t, terminal, file, *update && server.name == "kube-apiserver")
			})
		}
	}
}
