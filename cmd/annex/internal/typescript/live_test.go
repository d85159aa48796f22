package typescript_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/cmd/annex/internal/typescript"
	"github.com/annexapi/annex/internal/base/apidocument"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/operation"
	"github.com/annexapi/annex/store/memory"
)

// SummaryOptions are the options of a view.
type SummaryOptions struct {
	metav1.TypeMeta `json:",inline"`

	Style string `json:"style,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (o *SummaryOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

// shop has a kind with everything that a client can use.
func shop() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Query(
			annex.Sortable("spec.replicas", func(w *v1.Widget) int64 {
				if w.Spec.Replicas == nil {
					return 0
				}
				return int64(*w.Spec.Replicas)
			}),
			annex.Filterable("spec.size", func(w *v1.Widget) string { return w.Spec.Size }),
			annex.Text("status.phase", func(w *v1.Widget) string { return w.Status.Phase }),
		).Subresources(
			annex.Action("resizing", func(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Resizing]) (*v1.Widget, error) {
				return r.Update(ctx, func(w *v1.Widget) error { w.Spec.Size = r.Object.Size; return nil })
			}),
			annex.Connect("log", func(_ context.Context, r *annex.ConnectRequest[v1.Widget, v1.LogOptions]) (http.Handler, error) {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintf(w, "%s begins\n%s ends\n", r.Name, r.Options.Prefix)
				}), nil
			}),
			annex.View("summary", func(_ context.Context, r *annex.ViewRequest[v1.Widget, SummaryOptions]) (*v1.Inspection, error) {
				return &v1.Inspection{Verdict: r.Options.Style}, nil
			}),
			operation.Action("polishing", func(_ context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
				return &v1.Inspection{Verdict: run.Name + " shines"}, nil
			}),
		).Validate(func(_ context.Context, w *v1.Widget) field.ErrorList {
			if w.Spec.Size == "huge" {
				return field.ErrorList{field.Invalid(field.NewPath("spec", "size"), w.Spec.Size, "is too large")}
			}
			return nil
		}),
		operation.Kind(v1.API, operation.Options{}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	}}}}
}

const token = "0123456789abcdef"

// start runs the server, and returns its configuration and its document.
func start(t *testing.T) (*rest.Config, []byte) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+`,ada,1,"system:masters"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := annextest.StartWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokens})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	document, err := apidocument.Join(func(path string) ([]byte, error) {
		response, err := client.Get(config.Host + path)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		return io.ReadAll(response.Body)
	}, func(group string) bool { return !apidocument.IsForeign(group) })
	if err != nil {
		t.Fatal(err)
	}
	text, err := document.Text()
	if err != nil {
		t.Fatal(err)
	}
	return config, text
}

// The files in testdata are the client of the server above.
func TestGenerate_golden(t *testing.T) {
	_, text := start(t)
	files, err := typescript.Generate(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := typescript.Generate(text)
	if err != nil || !slices.Equal(files, again) {
		t.Errorf("the same document gives other files (%v)", err)
	}
	files = slices.DeleteFunc(files, func(f typescript.File) bool { return f.Name == "runtime.ts" || f.Name == "react.ts" })
	golden := filepath.Join("testdata", "shop")
	if os.Getenv("UPDATE") != "" {
		if _, err := typescript.Write(golden, files, false); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := typescript.Write(golden, files, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range written {
		if w.Changed {
			t.Errorf("%s is not what the generator makes: UPDATE=1 writes it", w.File)
		}
	}
}

// tools finds node, and the compiler and React's types in the packages of the console; without them the test is skipped.
func tools(t *testing.T) (packages string) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed: the client is not compiled")
	}
	packages, err := filepath.Abs(filepath.Join("..", "..", "..", "..", "internal", "program", "console", "web", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(packages, "typescript", "package.json")); err != nil {
		t.Skip("TypeScript is not installed: run npm ci in internal/program/console/web")
	}
	return packages
}

// strictOptions are the options of the compiler with which the client has to pass.
const strictOptions = `{"compilerOptions": {
	"target": "ES2022", "module": "NodeNext", "moduleResolution": "NodeNext", "lib": ["ES2022", "DOM", "DOM.Iterable"],
	"types": [],
	"strict": true, "noUncheckedIndexedAccess": true, "exactOptionalPropertyTypes": true,
	"noImplicitOverride": true, "noImplicitReturns": true,
	"noUnusedLocals": true, "noUnusedParameters": true, "noFallthroughCasesInSwitch": true,
	"verbatimModuleSyntax": true, "isolatedModules": true,
	"declaration": true, "outDir": "js", "rootDir": "src", "paths": {"react": ["./react.d.ts"]}
}, "include": ["src"]}`

// hooks are React's declarations, as far as the hooks use them.
const hooks = `export function useCallback<T>(f: T, deps: readonly unknown[]): T;
export function useEffect(f: () => void | (() => void), deps: readonly unknown[]): void;
export function useRef<T>(value: T): { current: T };
export function useState<T>(value: T): [T, (value: T | ((before: T) => T)) => void];
`

// compile writes a client and the scripts of testdata into a folder, and compiles them.
func compile(t *testing.T, packages string, document []byte) (dir string, diagnostics string) {
	t.Helper()
	files, err := typescript.Generate(document)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if _, err := typescript.Write(filepath.Join(dir, "src", "api"), files, false); err != nil {
		t.Fatal(err)
	}
	put := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("tsconfig.json", []byte(strictOptions))
	put("react.d.ts", []byte(hooks))
	put("package.json", []byte(`{"type": "module"}`))
	for _, name := range []string{"use.ts", "misuse.ts"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		put(filepath.Join("src", name), text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	compiler := filepath.Join(packages, "typescript", "bin", "tsc")
	out, err := exec.CommandContext(ctx, "node", compiler, "--pretty", "false", "-p", dir).CombinedOutput()
	if err != nil {
		return dir, string(out)
	}
	return dir, ""
}

// The compiler accepts the client and its use, under strict options, and refuses each misuse: misuse.ts expects an error in
// each of its statements.
func TestClient_inNode(t *testing.T) {
	packages := tools(t)
	config, document := start(t)
	dir, diagnostics := compile(t, packages, document)
	if diagnostics != "" {
		t.Fatal(diagnostics)
	}
	authority := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(authority, config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "js", "use.js"), config.Host, token)
	cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+authority)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all steps passed") {
		t.Fatalf("%v\n%s", err, out)
	}
}
