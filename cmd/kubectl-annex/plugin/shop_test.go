package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/operation"
	"github.com/annexapi/annex/stream"
)

// shop serves widgets with a subresource of each form, and shelves without subresources. Each widget's commands run
// in a folder of their own.
type shop struct{ folders string }

// SummaryOptions are the options of a view.
type SummaryOptions struct {
	metav1.TypeMeta `json:",inline"`

	Style    string   `json:"style,omitempty"`
	MaxLines int64    `json:"maxLines,omitempty"`
	Parts    []string `json:"parts,omitempty"`
}

func (o *SummaryOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

func (s shop) definition() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).ShortNames("wd").Subresources(
			annex.Action("inspection", s.inspect),
			annex.Action("resizing", s.resize),
			annex.Connect("log", s.log),
			stream.Exec("exec", s.exec),
			stream.Attach("attach", s.attach),
			stream.PortForward("portforward", s.dial),
			annex.View("summary", s.summary),
			operation.Action("polishing", s.polish),
		),
		operation.Kind(v1.API, operation.Options{}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	}}}}
}

func (shop) inspect(_ context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
	if r.Object.Phase == "" {
		return nil, errors.New("no phase")
	}
	r.Object.Verdict = fmt.Sprintf("%s says %s of %s, dry run %t", r.Object.Inspector, r.Object.Phase, r.Name, r.DryRun)
	return r.Object, nil
}

func (shop) resize(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Resizing]) (*v1.Widget, error) {
	return r.Update(ctx, func(w *v1.Widget) error {
		if w.Labels == nil {
			w.Labels = map[string]string{}
		}
		w.Labels["size"] = r.Object.Size
		return nil
	})
}

func (shop) summary(_ context.Context, r *annex.ViewRequest[v1.Widget, SummaryOptions]) (*v1.Inspection, error) {
	return &v1.Inspection{Verdict: fmt.Sprintf("%s, %d lines, of %v", r.Options.Style, r.Options.MaxLines, r.Options.Parts)}, nil
}

// polish takes three steps, or fails, or runs until it is cancelled, depending on the phase.
func (shop) polish(ctx context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
	run.Unit("sides")
	for i := range int64(3) {
		run.Progress(i, 3)
		run.Logf("side %d", i)
	}
	switch run.Object.Phase {
	case "Bad":
		return nil, errors.New("it is scratched")
	case "Endless":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &v1.Inspection{Verdict: run.Name + " shines"}, nil
}

func (shop) log(_ context.Context, r *annex.ConnectRequest[v1.Widget, v1.LogOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(w, "%s is asked for %s\n", r.Name, request.URL.RawQuery)
		if r.Options.Follow {
			fmt.Fprintf(w, "and followed")
		}
	}), nil
}

// exec runs a command on this machine.
func (s shop) exec(ctx context.Context, r *stream.ExecRequest[v1.Widget], streams stream.Streams) error {
	command := r.Options.Command
	if r.Options.Container == "gone" {
		return apierrors.NewBadRequest("container gone is not valid for widget " + r.Name)
	}
	if command[0] == "size" {
		for size := range streams.Resize {
			fmt.Fprintf(streams.Stdout, "terminal %t, %d columns, %d lines\r\n", streams.TTY, size.Width, size.Height)
			if size.Width == 120 {
				break
			}
		}
		typed, err := bufio.NewReader(streams.Stdin).ReadString('\r')
		fmt.Fprintf(streams.Stdout, "typed %q\r\n", typed)
		if err != nil {
			return err
		}
		return stream.ExitError{Code: 7}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = filepath.Join(s.folders, r.Name)
	if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = streams.Stdin, streams.Stdout, streams.Stderr, time.Second
	var exited *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exited) {
		return stream.ExitError{Code: exited.ExitCode()}
	} else {
		return err
	}
}

// attach sends its input back.
func (shop) attach(_ context.Context, r *stream.AttachRequest[v1.Widget], streams stream.Streams) error {
	fmt.Fprintf(streams.Stdout, "attached to %s\n", r.Name)
	if !r.Options.Stdin {
		return nil
	}
	_, err := io.Copy(streams.Stdout, streams.Stdin)
	return err
}

// dial connects to an echo server that greets first; port 81 is closed.
func (shop) dial(_ context.Context, r *stream.PortForwardRequest[v1.Widget], port int32) (net.Conn, error) {
	if port == 81 {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	there, here := net.Pipe()
	go func() {
		defer there.Close()
		fmt.Fprintf(there, "port %d of %s\n", port, r.Name)
		_, _ = io.Copy(there, there)
	}()
	return here, nil
}

// openShop starts the server with two widgets, and returns its client configuration and the folder of its kubeconfig.
func openShop(t *testing.T) (*rest.Config, string) {
	t.Helper()
	config := annextest.Start(t, shop{t.TempDir()}.definition())
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		text := fmt.Sprintf("apiVersion: shop.example.com/v1\nkind: Widget\nmetadata:\n  name: %s\n  labels: {app: build}\n", name)
		file := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		annextest.Apply(t, config, file)
		if name == "b" { // a second revision
			if err := os.WriteFile(file, []byte(text+"spec: {size: large}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			annextest.Apply(t, config, file)
		}
	}
	writeKubeconfig(t, config, filepath.Join(dir, "kubeconfig"))
	return config, dir
}

func writeKubeconfig(t *testing.T, config *rest.Config, file string) {
	t.Helper()
	text := clientcmdapi.NewConfig()
	text.Clusters["shop"] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify:    config.Insecure,
		TLSServerName:            config.ServerName,
	}
	text.AuthInfos["admin"] = &clientcmdapi.AuthInfo{
		Token:                 config.BearerToken,
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
	}
	text.Contexts["shop"] = &clientcmdapi.Context{Cluster: "shop", AuthInfo: "admin", Namespace: "default"}
	text.CurrentContext = "shop"
	if err := clientcmd.WriteToFile(*text, file); err != nil {
		t.Fatal(err)
	}
}

// ran is the result of a command line.
type ran struct {
	code        int
	out, errOut string
}

// run runs a command line of the plugin in this process, with a discovery cache of its own.
func run(t *testing.T, kubeconfig, in string, words ...string) ran {
	t.Helper()
	var out, errOut strings.Builder
	flags := []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + filepath.Join(filepath.Dir(kubeconfig), "cache")}
	code := Run(t.Context(), Options{}, append(flags, words...), IOStreams{In: strings.NewReader(in), Out: &out, ErrOut: &errOut})
	return ran{code, out.String(), errOut.String()}
}
