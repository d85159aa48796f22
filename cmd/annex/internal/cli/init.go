package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

func newInit(module Module) *cobra.Command {
	var o scaffold.InitOptions
	s := scaffolding{verb: "init", module: module}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a project: an API server, its Makefile, its tests",
		Long: `Writes a project into the current folder: go.mod with all dependencies of the server, so that
you need not download any later; main.go with a server that has no kinds yet; a test; a
Makefile, a Dockerfile and a CI workflow.

--domain is the suffix of API group names; the verb records it in main.go. It keeps an existing
go.mod and adds the missing requirements. If other files exist already, the verb writes nothing,
unless you set --force to replace them.

Until Annex has a release, go.mod points to the checkout from which this tool was built; set
--replace or the environment variable ANNEX_CHECKOUT for another checkout. The path is relative
if the checkout is beside the project, so that it also works on other machines.`,
		Example: `  annex init
  annex init --domain demo.io --repo example.com/animal`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Init(cmd.Context(), o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Domain, "domain", "example.com", "suffix of API group names")
	cmd.Flags().StringVar(&o.Repo, "repo", "", "path of the Go module (default: the path in go.mod, or example.com/FOLDER)")
	cmd.Flags().StringVar(&o.Name, "name", "", "name of the server, a DNS label (default: the last part of the module's path)")
	cmd.Flags().
		StringVar(&o.Replace, "replace", "", "folder of a checkout of Annex for the replace directive in go.mod (default: the checkout "+
			"from which this tool was built)")
	s.flags(cmd)
	return cmd
}

// scaffolding is shared by the verbs that write a project's files.
type scaffolding struct {
	verb   string
	module Module
	common scaffold.Options
	output string
}

func (s *scaffolding) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.common.DryRun, "dry-run", false, "write nothing; print the files and their diffs")
	cmd.Flags().BoolVar(&s.common.Force, "force", false, "replace existing files")
	cmd.Flags().StringVarP(&s.output, "output", "o", "text", "format of the result: text or json")
}

// run executes the verb, generates the packages that it names, and prints both results.
func (s *scaffolding) run(cmd *cobra.Command, work func(scaffold.Options) (*scaffold.Result, error)) error {
	if s.output != "text" && s.output != "json" {
		return usageError{fmt.Errorf("--output %q: use text or json", s.output)}
	}
	result, err := work(s.common)
	var misuse *scaffold.UsageError
	if errors.As(err, &misuse) {
		return usageError{fmt.Errorf("%s: %w", s.verb, err)}
	}
	if err == nil && !s.common.DryRun {
		err = result.Finish(s.generate(cmd.Context(), result))
	}
	problems := problemsOf(err)
	if err != nil && problems == nil {
		return fmt.Errorf("%s: %w", s.verb, err)
	}
	if err := s.print(cmd, result, problems); err != nil {
		return err
	}
	if len(problems) > 0 {
		return errReported
	}
	return nil
}

// generate writes the generated files beside the scaffolded ones.
func (s *scaffolding) generate(ctx context.Context, result *scaffold.Result) error {
	if len(result.Packages) == 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	o := generate.Options{Module: s.module, Worker: []string{self, workerVerb}}
	created := map[string]bool{}
	for _, dir := range result.Packages {
		o.Args = append(o.Args, "./"+filepath.ToSlash(dir))
		_, err := os.Stat(filepath.Join(dir, generate.FileName))
		created[filepath.Join(dir, generate.FileName)] = errors.Is(err, fs.ErrNotExist)
	}
	made, err := generate.Run(ctx, o)
	for _, p := range made.Packages {
		for _, file := range []struct {
			path    string
			changed bool
		}{{p.Proto, p.ProtoChanged}, {p.File, p.FileChanged}} {
			state := scaffold.Unchanged
			switch {
			case file.path == "":
				continue
			case created[p.File]:
				state = scaffold.Created
			case file.changed:
				state = scaffold.Changed
			}
			result.Files = append(result.Files, scaffold.File{Path: file.path, State: state})
		}
	}
	return err
}

func (s *scaffolding) print(cmd *cobra.Command, result *scaffold.Result, problems generate.Problems) error {
	out := cmd.OutOrStdout()
	if s.output == "json" {
		answer := struct {
			*scaffold.Result
			Errors generate.Problems `json:"errors,omitempty"`
		}{result, problems}
		if result == nil {
			answer.Result = &scaffold.Result{Files: []scaffold.File{}}
		}
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(answer); err != nil {
			return fmt.Errorf("%s: %w", s.verb, err)
		}
	} else if result != nil {
		for _, f := range result.Files {
			fmt.Fprintf(out, "%s\t%s\n", f.Path, f.State)
		}
		for _, f := range result.Files {
			if f.Diff != "" {
				fmt.Fprint(out, "\n"+f.Diff)
			}
		}
		for _, note := range result.Notes {
			fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", note)
		}
		if len(result.Next) > 0 && len(problems) == 0 {
			fmt.Fprintf(out, "\nNext:\n  %s\n", strings.Join(result.Next, "\n  "))
		}
	}
	for _, p := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p.Error())
	}
	return nil
}
