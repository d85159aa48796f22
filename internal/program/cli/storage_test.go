package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
	"k8s.io/client-go/rest"
)

// Compiling a definition runs the generated code of all API packages.
func TestRun_compilesDefinitionOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range []string{
		"describe", "storage dump --resource namespaces", "storage dump --prefix /a", "storage rewrite --resource namespaces,namespaces",
		"storage stats", "storage verify", "storage compact", "storage backup --to -", "storage restore --from missing",
		"storage migrate --from embedded --to files", "storage migrate --from embedded --to etcd-snapshot=x --to-etcd-servers http://127.0.0.1:1",
	} {
		compiled := 0
		program := Program{
			Name: "shop",
			Define: func() (*definition.Definition, error) {
				compiled++
				return &definition.Definition{
					Server: &define.Server{Name: "shop"},
					NewEnv: func(*define.Server, *rest.Config, *informer.Set, func() []byte) any { return nil },
				}, nil
			},
		}
		Run(t.Context(), program, append(strings.Fields(args), "--data-dir", dir), io.Discard, io.Discard)
		if compiled != 1 {
			t.Errorf("%s: compiled %d times, want once", args, compiled)
		}
	}
}
