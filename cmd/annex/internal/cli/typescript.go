package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/cmd/annex/internal/dev"
	"github.com/annexapi/annex/cmd/annex/internal/typescript"
	"github.com/annexapi/annex/internal/base/apidocument"
)

// typescriptFlags are the flags of generate for a TypeScript client.
type typescriptFlags struct {
	dir, from string
}

func (f *typescriptFlags) declare(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "typescript", "", "folder for a TypeScript client of the project's server")
	flags.StringVar(&f.from, "from", "", "server of --typescript: a kubeconfig, a URL, a file that the verb openapi printed, or "+
		"the folder of a main package (default: the package beside go.mod)")
}

// check returns the first mistake in the flags.
func (f typescriptFlags) check(flags *pflag.FlagSet, args []string) error {
	switch {
	case flags.Changed("typescript") && f.dir == "":
		return errors.New("--typescript: set it to the folder for the client, such as web/src/api")
	case flags.Changed("from") && f.dir == "":
		return errors.New("--from requires --typescript")
	case flags.Changed("from") && f.from == "":
		return errors.New("--from: set it to a kubeconfig, a URL, a document or the folder of a main package")
	case f.dir != "" && flags.Changed("for"):
		return errors.New("--typescript and --for exclude each other: generate the client in a run without --for")
	case f.from != "" && !f.isPackage() && (len(args) > 0 || flags.Changed("clients")):
		return errors.New("--from generates no Go code, which packages and --clients ask for: run annex generate once with --from, " +
			"and once without")
	}
	return nil
}

func (f typescriptFlags) isURL() bool {
	return strings.HasPrefix(f.from, "http://") || strings.HasPrefix(f.from, "https://")
}

// isPackage reports whether --from is the folder of a package.
func (f typescriptFlags) isPackage() bool {
	info, err := os.Stat(f.from)
	return err == nil && info.IsDir()
}

// reportClient writes the TypeScript client, and prints it with the files that the run has made before.
func reportClient(cmd *cobra.Command, f typescriptFlags, check, asJSON bool, made result) error {
	text, err := f.document(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return fmt.Errorf("generate the TypeScript client: %w", err)
	}
	files, err := typescript.Generate(text)
	if err != nil {
		return fmt.Errorf("generate the TypeScript client: %w", err)
	}
	if made.TypeScript, err = typescript.Write(f.dir, files, check); err != nil {
		return err
	}
	return reportResult(cmd.OutOrStdout(), cmd.ErrOrStderr(), made, check, asJSON)
}

// document returns the OpenAPI document of the server.
func (f typescriptFlags) document(ctx context.Context, stderr io.Writer) ([]byte, error) {
	switch {
	case f.isURL():
		return documentAt(ctx, f.from)
	case f.from != "" && !f.isPackage():
		text, err := os.ReadFile(f.from)
		if err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		if isDocument(text) {
			return text, nil
		}
		return documentOfKubeconfig(ctx, f.from, text)
	}
	var args []string
	if f.from != "" {
		args = []string{f.from}
	}
	p, err := findServerModule(ctx, args)
	if err != nil {
		return nil, fmt.Errorf("find the project's server, which --from would name: %w", err)
	}
	var out bytes.Buffer
	if err := dev.Once(ctx, dev.Options{Dir: p.dir, Package: p.main, Args: []string{"openapi"}, Stdout: &out, Stderr: stderr}); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func isDocument(text []byte) bool {
	var d struct {
		OpenAPI string `json:"openapi"`
	}
	return json.Unmarshal(text, &d) == nil && d.OpenAPI != ""
}

// documentTime bounds the time in which a server answers with its documents.
const documentTime = 30 * time.Second

// documentAt returns the document of a server, or of the document at a URL.
func documentAt(ctx context.Context, address string) ([]byte, error) {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" {
		return nil, fmt.Errorf("--from %s: no URL such as https://127.0.0.1:8443", address)
	}
	get := getter(ctx, &http.Client{Timeout: documentTime}, at.Scheme+"://"+at.Host)
	if path := strings.TrimRight(at.Path, "/"); path != "" && path != apidocument.Index {
		text, err := get(at.RequestURI())
		if err == nil && !isDocument(text) {
			err = fmt.Errorf("%s: no OpenAPI document", address)
		}
		return text, err
	}
	return joined(get)
}

// documentOfKubeconfig returns the document of the server of a kubeconfig, with the rights of its user.
func documentOfKubeconfig(ctx context.Context, file string, text []byte) ([]byte, error) {
	if _, err := clientcmd.RESTConfigFromKubeConfig(text); err != nil {
		return nil, fmt.Errorf("--from %s is neither an OpenAPI document nor a kubeconfig: %w", file, err)
	}
	// Relative paths in a kubeconfig begin in its folder.
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", file, err)
	}
	config.Timeout = documentTime
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", file, err)
	}
	return joined(getter(ctx, client, strings.TrimRight(config.Host, "/")))
}

// joined returns one document of all groups that are not Kubernetes' own.
func joined(get func(path string) ([]byte, error)) ([]byte, error) {
	document, err := apidocument.Join(get, func(group string) bool { return !apidocument.IsForeign(group) })
	if err != nil {
		return nil, err
	}
	if len(document.Paths) == 0 {
		return nil, errors.New("the server has no kinds but those of Kubernetes: apply CustomResourceDefinitions first")
	}
	return document.Text()
}

// getter is apidocument.Reader with a hint for callers whom the server does not let read.
func getter(ctx context.Context, client *http.Client, base string) func(path string) ([]byte, error) {
	read := apidocument.Reader(ctx, client, base)
	return func(path string) ([]byte, error) {
		body, err := read(path)
		var refused *apidocument.StatusError
		if errors.As(err, &refused) && (refused.Code == http.StatusUnauthorized || refused.Code == http.StatusForbidden) {
			return nil, fmt.Errorf("%s: %s: set --from to a kubeconfig of a user who may read it", refused.URL, refused.Status)
		}
		return body, err
	}
}

// printTypeScript prints the files that change, and the number of unchanged files.
func printTypeScript(w io.Writer, files []typescript.Written, check bool) {
	unchanged := 0
	for _, f := range files {
		switch {
		case !f.Changed:
			unchanged++
		case check:
			fmt.Fprintf(w, "%s\tstale\n", f.File)
		case f.Removed:
			fmt.Fprintf(w, "%s\tremoved\n", f.File)
		default:
			fmt.Fprintf(w, "%s\twritten\n", f.File)
		}
	}
	if unchanged > 0 {
		fmt.Fprintf(w, "%d files of the TypeScript client\tunchanged\n", unchanged)
	}
}
