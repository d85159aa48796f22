package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
	"github.com/annexapi/annex/cmd/annex/internal/typescript"
)

// workerVerb is the hidden verb by which generate runs itself.
const workerVerb = "generate-worker"

func newGenerate(module Module) *cobra.Command {
	var check, anew bool
	var output, forPackage, as, clients, header string
	var client typescriptFlags
	cmd := &cobra.Command{
		Use:   "generate [DIR|PATTERN...]",
		Short: "Generate code for Go API packages",
		Long: `Writes one file, ` + generate.FileName + `, into each API package: deep copies,
defaults, OpenAPI definitions, registration, and the function API for the definition
of a server.

An API package has a comment // +groupName=GROUP above its package clause; the name of the
package is the API version. Without arguments the verb handles all API packages below the
current folder.

With --clients it also writes a typed clientset, listers, informers and apply configurations
of all kinds into a folder, as packages clientset, listers, informers and applyconfiguration.

With --typescript it then writes a TypeScript client of the project's server: the types of all
kinds, and methods for everything that the server serves. With --from it writes the client of
another server instead, and no Go code: of a running server, given by a kubeconfig or a URL, or of
a document that a server's verb openapi printed.

With --check it writes nothing, and fails if files are not up to date or annex lint api finds
breaking changes.`,
		Example: `  annex generate
  annex generate ./apis/...
  annex generate --for k8s.io/api/apps/v1 --as apps.example.com/v1 ./facts/apps
  annex generate --clients client
  annex generate --typescript web/src/api
  annex generate --typescript web/src/api --from data/kubeconfig
  annex generate --check ./apis/wardle/v1beta1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: use text or json", output)}
			}
			if as != "" && forPackage == "" {
				return usageError{errors.New("--as requires --for: set --for to the import path of the package")}
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("generate: %w", err)
			}
			if clients != "" && forPackage != "" {
				return usageError{errors.New("--clients and --for exclude each other: generate the clients in a run without --for")}
			}
			if cmd.Flags().Changed("clients") && clients == "" {
				return usageError{errors.New("--clients: set it to the folder for the clients, such as client")}
			}
			if err := client.check(cmd.Flags(), args); err != nil {
				return usageError{err}
			}
			if client.from != "" && !client.isPackage() {
				return reportClient(cmd, client, check, output == "json", result{Packages: []generate.Package{}})
			}
			made, err := generate.Run(cmd.Context(), generate.Options{
				Args:    args,
				Check:   check,
				Anew:    anew,
				For:     forPackage,
				As:      as,
				Clients: clients,
				Header:  header,
				Module:  module,
				Worker:  []string{self, workerVerb},
			})
			if client.dir != "" && err == nil {
				err = reportClient(cmd, client, check, output == "json", result{Packages: made.Packages, Clients: made.Clients})
			} else {
				err = report(cmd.OutOrStdout(), cmd.ErrOrStderr(), made, err, check, output == "json")
			}
			if err != nil || !check {
				return err
			}
			if forPackage != "" {
				return nil // a package of another module is not linted
			}
			return lintAfterCheck(cmd.Context(), cmd.ErrOrStderr(), args)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; print the files that are not up to date, and fail")
	cmd.Flags().StringVar(&forPackage, "for", "", "import path of a package that you cannot edit; the generated code is written into DIR")
	cmd.Flags().StringVar(&as, "as", "", "API group and version of the types of --for, such as apps/v1, or v1 for the core group")
	cmd.Flags().StringVar(&clients, "clients", "", "folder for typed clients of all kinds: a clientset, listers, informers and apply "+
		"configurations")
	client.declare(cmd.Flags())
	cmd.Flags().StringVar(&header, "header-file", "", "file with comments for the top of generated Go files, such as a licence (default: "+
		"the comments that each file has now)")
	cmd.Flags().BoolVar(&anew, "no-cache", false, "generate code even if nothing has changed since the last run")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	return cmd
}

func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:    workerVerb,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return generate.Work(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// result is the output with --output json.
type result struct {
	Packages []generate.Package    `json:"packages"`
	Clients  []generate.ClientFile `json:"clients,omitempty"`
	// TypeScript has the files of the TypeScript client.
	TypeScript []typescript.Written `json:"typescript,omitempty"`
	Errors     generate.Problems    `json:"errors,omitempty"`
}

func report(stdout, stderr io.Writer, made generate.Result, err error, check, asJSON bool) error {
	problems := problemsOf(err)
	if err != nil && problems == nil {
		return err
	}
	return reportResult(stdout, stderr, result{Packages: made.Packages, Clients: made.Clients, Errors: problems}, check, asJSON)
}

// reportResult prints a result. It returns an error if the result has one, or if a check has found files that are not up to date.
func reportResult(stdout, stderr io.Writer, made result, check, asJSON bool) error {
	packages, problems := made.Packages, made.Errors
	stale, files := 0, len(made.Clients)+len(made.TypeScript)
	for _, p := range packages {
		files++
		if check && p.FileChanged {
			stale++
		}
		if p.Proto != "" {
			files++
		}
		if check && p.ProtoChanged {
			stale++
		}
	}
	for _, f := range made.Clients {
		if check && f.Changed {
			stale++
		}
	}
	for _, f := range made.TypeScript {
		if check && f.Changed {
			stale++
		}
	}
	if asJSON {
		if packages == nil {
			made.Packages = []generate.Package{}
		}
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(made); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
	} else {
		for _, p := range packages {
			printPackage(stdout, p, check)
		}
		printClients(stdout, made.Clients, check)
		printTypeScript(stdout, made.TypeScript, check)
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, p.Error())
	}
	if stale > 0 {
		again := "annex generate"
		if len(made.Clients) > 0 {
			again += " with the same --clients"
		}
		if len(made.TypeScript) > 0 {
			again += " with the same --typescript"
		}
		fmt.Fprintf(stderr, "not up to date: %d of %d files: run %s\n", stale, files, again)
	}
	if stale > 0 || len(problems) > 0 {
		return errReported
	}
	return nil
}

func problemsOf(err error) generate.Problems {
	var many generate.Problems
	var one generate.Problem
	switch {
	case errors.As(err, &many):
		return many
	case errors.As(err, &one):
		return generate.Problems{one}
	}
	return nil
}

// printClients prints the client files that change, and the number of unchanged files.
func printClients(w io.Writer, files []generate.ClientFile, check bool) {
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
		fmt.Fprintf(w, "%d files of clients\tunchanged\n", unchanged)
	}
}

func printPackage(w io.Writer, p generate.Package, check bool) {
	state := func(changed bool) string {
		switch {
		case changed && check:
			return "stale"
		case changed:
			return "written"
		}
		return "unchanged"
	}
	what := "shared types"
	if p.Version != "" {
		what = strings.TrimPrefix(p.Group+"/"+p.Version, "/") + " " + strings.Join(p.Kinds, ", ")
	}
	fmt.Fprintf(w, "%s\t%s (%s)\n", p.File, state(p.FileChanged), what)
	if p.Proto != "" {
		fmt.Fprintf(w, "%s\t%s\n", p.Proto, state(p.ProtoChanged))
	}
}
