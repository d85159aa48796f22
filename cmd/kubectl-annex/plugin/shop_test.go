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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/shop/v1"
	"github.com/annexapi/annex/operation"
)

// shop serves widgets with a subresource of each form, and shelves with none. What runs in a widget
// runs in a folder of its own.
type shop struct{ folders string }

// ExecOptions, AttachOptions and PortForwardOptions are those of pods, by which discovery tells what
// the subresources are for.
type ExecOptions struct {
	metav1.TypeMeta `json:",inline"`

	Stdin     bool     `json:"stdin,omitempty"`
	Stdout    bool     `json:"stdout,omitempty"`
	Stderr    bool     `json:"stderr,omitempty"`
	TTY       bool     `json:"tty,omitempty"`
	Container string   `json:"container,omitempty"`
	Command   []string `json:"command,omitempty"`
}

func (o *ExecOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

type AttachOptions struct {
	metav1.TypeMeta `json:",inline"`

	Stdin  bool `json:"stdin,omitempty"`
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
	TTY    bool `json:"tty,omitempty"`
}

func (o *AttachOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

type PortForwardOptions struct {
	metav1.TypeMeta `json:",inline"`

	Ports string `json:"ports,omitempty"`
}

func (o *PortForwardOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

// SummaryOptions are those of a view.
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
			annex.Connect("exec", s.exec).Methods("GET", "POST"),
			annex.Connect("attach", s.attach).Methods("GET", "POST"),
			annex.Connect("portforward", s.forward).Methods("GET", "POST"),
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

// polish takes three steps; or fails, or goes on until it is cancelled, as its phase says.
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

func (s shop) exec(_ context.Context, r *annex.ConnectRequest[v1.Widget, ExecOptions]) (http.Handler, error) {
	o := r.Options
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		streams := &remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
		remotecommand.ServeExec(w, request, s, r.Name, "", o.Container, o.Command, streams, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// ExecInContainer runs a command of this machine.
func (s shop) ExecInContainer(ctx context.Context, name string, _ string, container string, command []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if container == "gone" {
		return fmt.Errorf("container %s is not valid for widget %s", container, name)
	}
	if command[0] == "size" {
		for size := range resize {
			fmt.Fprintf(out, "terminal %t, %d columns, %d lines\r\n", tty, size.Width, size.Height)
			if size.Width == 120 {
				break
			}
		}
		typed, err := bufio.NewReader(in).ReadString('\r')
		fmt.Fprintf(out, "typed %q\r\n", typed)
		if err != nil {
			return err
		}
		return utilexec.CodeExitError{Err: errors.New("exit status 7"), Code: 7}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = filepath.Join(s.folders, name)
	if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
		return err
	}
	cmd.Stdin, cmd.WaitDelay = in, time.Second
	if out != nil {
		cmd.Stdout = out
	}
	if errOut != nil {
		cmd.Stderr = errOut
	}
	var exited *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exited) {
		return utilexec.CodeExitError{Err: err, Code: exited.ExitCode()}
	} else {
		return err
	}
}

func (s shop) attach(_ context.Context, r *annex.ConnectRequest[v1.Widget, AttachOptions]) (http.Handler, error) {
	o := r.Options
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		streams := &remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
		remotecommand.ServeAttach(w, request, s, r.Name, "", "", streams, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	}), nil
}

// AttachContainer answers what comes in.
func (shop) AttachContainer(_ context.Context, name string, _ string, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	fmt.Fprintf(out, "attached to %s\n", name)
	if in == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

func (s shop) forward(_ context.Context, r *annex.ConnectRequest[v1.Widget, PortForwardOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		portforward.ServePortForward(w, request, s, r.Name, "", &portforward.V4Options{}, time.Minute, time.Minute, portforward.SupportedProtocols)
	}), nil
}

// PortForward greets, and answers with what comes in; port 81 is closed.
func (shop) PortForward(_ context.Context, name string, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if port == 81 {
		return &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	fmt.Fprintf(stream, "port %d of %s\n", port, name)
	_, err := io.Copy(stream, stream)
	return err
}

// openShop starts the server with two widgets, and returns its client configuration and the folder in
// which its kubeconfig is.
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
	}
	writeKubeconfig(t, config, filepath.Join(dir, "kubeconfig"))
	return config, dir
}

func writeKubeconfig(t *testing.T, config *rest.Config, file string) {
	t.Helper()
	text := clientcmdapi.NewConfig()
	text.Clusters["shop"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, InsecureSkipTLSVerify: config.Insecure, TLSServerName: config.ServerName}
	text.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	text.Contexts["shop"] = &clientcmdapi.Context{Cluster: "shop", AuthInfo: "admin", Namespace: "default"}
	text.CurrentContext = "shop"
	if err := clientcmd.WriteToFile(*text, file); err != nil {
		t.Fatal(err)
	}
}

// ran is what a command line did.
type ran struct {
	code        int
	out, errOut string
}

// run runs a command line of the plugin in this process, with a cache of its own.
func run(t *testing.T, kubeconfig, in string, words ...string) ran {
	t.Helper()
	var out, errOut strings.Builder
	flags := []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + filepath.Join(filepath.Dir(kubeconfig), "cache")}
	code := Run(t.Context(), Options{}, append(flags, words...), IOStreams{In: strings.NewReader(in), Out: &out, ErrOut: &errOut})
	return ran{code, out.String(), errOut.String()}
}
