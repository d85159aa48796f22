package docs

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// The examples of coming-from.md, which TestPages_showTheirExamples compares with
// this file. What they call is below them.

func Example_main() {
	program.Main(annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name:  "shop.example.com",
			Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
		}},
	})
}

func Example_withResource() {
	// The first version is the hub, and what is stored.
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		ShortNames("wd").
		Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub))
}

func Example_withResourceAndStrategy() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Default(func(w *v1.Widget) { w.Spec.Size = "medium" }).
		PrepareForCreate(func(ctx context.Context, w *v1.Widget) { w.Spec.Options = nil }).
		PrepareForUpdate(func(ctx context.Context, w, old *v1.Widget) { w.Spec.Options = old.Spec.Options }).
		Validate(func(ctx context.Context, w *v1.Widget) field.ErrorList { return nil }).
		ValidateUpdate(func(ctx context.Context, w, old *v1.Widget) field.ErrorList { return nil }).
		Warn(func(ctx context.Context, w *v1.Widget) []string { return nil })
}

func Example_withResourceAndStorage() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		StoredIn(memory.Storage())
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Virtual(annex.Source[v1.Widget]{Get: machines.Get, List: machines.List, Poll: 5 * time.Second})
}

func Example_withResourceAndHandler() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		CustomStorage(func(env *annex.Env, base annex.RESTBase) (registryrest.Storage, error) {
			return &widgetREST{base}, nil
		})
}

func Example_withSubResource() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Scale(".spec.replicas", ".status.replicas", ".status.selector").
		Subresources(
			annex.Action("inspection", inspectWidget),
			annex.Connect("log", logOfWidget).LongRunning(func(o *v1.LogOptions) bool { return o.Follow }),
		)
}

func Example_withOptionsFns() {
	ctx := context.Background()
	instance, err := annex.New(ctx, server, annex.Options{
		Storage:        memory.Storage(),
		Listen:         "127.0.0.1:6443",
		TokenAuthFile:  "tokens.csv",
		RequestTimeout: 30 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := instance.Run(ctx, nil); err != nil {
		log.Fatal(err)
	}
}

func Example_withServerFns() {
	ctx := context.Background()
	instance, err := annex.New(ctx, server, annex.Options{Storage: embedded.Dir(""), DataDir: "data"})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", instance.Handler())
	mux.HandleFunc("/menu", menu)
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:6080", mux)) }()
	if err := instance.Run(ctx, nil); err != nil {
		log.Fatal(err)
	}
}

func Example_exposeLoopback() {
	server.Controllers = []annex.Controller{{
		Name: "pricing",
		Run: func(ctx context.Context, env *annex.Env) error {
			client, err := rest.HTTPClientFor(env.ClientConfig())
			if err != nil {
				return err
			}
			return price(ctx, client)
		},
	}}
}

func Example_admission() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			shelves, err := annex.ListerFor[v1.Shelf](env)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, r annex.Request[v1.Widget]) error {
				if r.Operation != annex.Create {
					return nil
				}
				_, err := shelves.Get(ctx, "", r.Object.Spec.Options["shelf"])
				return err
			}, nil
		})
}

func Example_table() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Columns(annex.Column[v1.Widget]{Name: "Size", Value: func(w *v1.Widget) any { return w.Spec.Size }}).
		SelectableField("spec.size", func(w *v1.Widget) string { return w.Spec.Size })
}

func Example_webhooks() {
	annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Mutate(func(ctx context.Context, r annex.Request[v1.Widget]) error {
			if r.Operation == annex.Create {
				r.Object.Labels = map[string]string{"owner": r.User.GetName()}
			}
			return nil
		}).
		Admit(func(ctx context.Context, r annex.Request[v1.Widget]) error {
			if r.Operation == annex.Delete && r.Old.Spec.Options["frozen"] != "" {
				return fmt.Errorf("%s is frozen", r.Name)
			}
			return nil
		})
}

func Example_envtest() {
	test := func(t *testing.T) {
		config := annextest.Start(t, server)
		useIn(t, config)
	}
	_ = test
}

func Example_tilt() {
	instance, err := annex.New(context.Background(), server, annex.Options{
		DataDir:       "data",
		Storage:       files.Dir("objects"),
		StorageOf:     map[schema.GroupResource]annex.Storage{{Group: "shop.example.com", Resource: "widgets"}: memory.Storage()},
		Listen:        "127.0.0.1:0",
		TokenAuthFile: "tokens.csv",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer instance.Close()
}

var server annex.Server

var machines interface {
	Get(ctx context.Context, namespace, name string) (*v1.Widget, error)
	List(ctx context.Context) ([]v1.Widget, error)
}

type widgetREST struct{ annex.RESTBase }

func (r *widgetREST) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return r.New(), nil
}

func inspectWidget(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
	return r.UpdateStatus(ctx, func(w *v1.Widget) error {
		w.Status.Phase = r.Object.Phase
		return nil
	})
}

func logOfWidget(_ context.Context, r *annex.ConnectRequest[v1.Widget, v1.LogOptions]) (http.Handler, error) {
	return http.NotFoundHandler(), nil
}

func menu(http.ResponseWriter, *http.Request) {}

func price(context.Context, *http.Client) error { return nil }

func useIn(*testing.T, *rest.Config) {}

// TestPages_showTheirExamples checks that the Go code in pages compiles: a block of Go that names an example must be
// the body of that example.
func TestPages_showTheirExamples(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		page, source string
		all          bool // blocks name an example
	}{{"coming-from.md", "coming_from_test.go", true}, {"../README.md", "readme_test.go", false}} {
		bodies := examplesIn(t, test.source)
		page, err := os.ReadFile(test.page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)(<!-- (\\w+) -->\n)?```go\n(.*?)\n```").FindAllStringSubmatch(string(page), -1)
		for _, block := range blocks {
			name, text := block[2], block[3]
			if name == "" && !test.all {
				continue
			}
			if body, ok := bodies[name]; !ok {
				t.Errorf("%s: this block names no example:\n%s", test.page, text)
			} else if text != body {
				t.Errorf("%s is in %s\n%s\nbut in the tests\n%s", name, test.page, text, body)
			}
			delete(bodies, name)
		}
		for name := range bodies {
			t.Errorf("%s is not in %s", name, test.page)
		}
	}
}

// examplesIn returns the bodies of a file's examples.
func examplesIn(t *testing.T, name string) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	set := token.NewFileSet()
	source, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(set, name, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Example_") {
			continue
		}
		body := string(source[set.Position(f.Body.Lbrace).Offset+1 : set.Position(f.Body.Rbrace).Offset])
		bodies[f.Name.Name] = strings.ReplaceAll(strings.Trim(body, "\n"), "\n\t", "\n")[1:]
	}
	return bodies
}
