package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/cmd/annex/internal/crd/gotypes"
	"github.com/annexapi/annex/cmd/annex/internal/generate"
	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

func newImport(module Module) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Import kinds from the format of another tool",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImportCRD(module))
	return cmd
}

func newImportCRD(module Module) *cobra.Command {
	var output, dir string
	var dryRun, typesOnly bool
	cmd := &cobra.Command{
		Use:   "crd FILE...",
		Short: "Write Go types from CustomResourceDefinitions, and add them to a server",
		Long: `Writes Go types with kubebuilder's markers from CustomResourceDefinitions in YAML or JSON files;
- is standard input. It writes a package for each group and version, DIR/GROUP/VERSION, where
GROUP is the first label of the group, with a file for each kind. annex export crd writes the
same schemas from these types again. The verb skips objects of other kinds, and files without
a definition, with a note on standard error.

In a project, the verb then generates code as annex generate does, and adds the kinds to the
definition of the server. Without a Go module, it first creates a project in the current folder,
as annex init does. After that, annex run serves the kinds. With --types-only, the verb only
writes the types.

The verb never overwrites a file of types: an existing file with other content is an error, and
the verb then writes nothing.`,
		Example: `  annex import crd config/crd/*.yaml && annex run
  annex import crd certificates.yaml --types-only
  kubectl get crd certificates.cert-manager.io -o yaml | annex import crd - --output-dir apis
  annex import crd config/crd/*.yaml --dry-run`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no files: pass a file with a CustomResourceDefinition, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: use text or json", output)}
			}
			definitions, err := readCRDs(cmd.InOrStdin(), cmd.ErrOrStderr(), args)
			if err != nil {
				return err
			}
			files, notes, err := gotypes.Write(dir, definitions)
			if err != nil {
				return err
			}
			s := scaffolding{verb: "import crd", module: module}
			made := &scaffold.Result{}
			register := !typesOnly && !dryRun
			if register && !scaffold.InModule("") {
				// An impossible project is reported before anything is written.
				if made, err = scaffold.Init(cmd.Context(), scaffold.InitOptions{}); err != nil {
					return fmt.Errorf("import crd: create a project in the current folder: %w; with --types-only, no project is needed", err)
				}
			}
			if err := writeFiles(dir, files, dryRun); err != nil {
				return err
			}
			var problems generate.Problems
			if register {
				registered, err := s.registerKinds(cmd.Context(), dir, definitions, files)
				if problems = problemsOf(err); err != nil && problems == nil {
					return err
				}
				made.Files, made.Next = append(made.Files, registered.Files...), registered.Next
				made.Notes = append(made.Notes, registered.Notes...)
			}
			if err := reportImport(cmd.OutOrStdout(), cmd.ErrOrStderr(), dir, files, notes, made, dryRun, output == "json"); err != nil {
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(cmd.ErrOrStderr(), p.Error())
			}
			if len(problems) > 0 {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	outputDir(cmd, &dir, "apis", "output folder for the packages")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the names of the files of types, and write nothing")
	cmd.Flags().BoolVar(&typesOnly, "types-only", false, "write only the types, without generated code and without a server")
	return cmd
}

// registerKinds adds the kinds of the definitions to the project's server, and generates their packages. Without a
// project, the result lists the next steps.
func (s *scaffolding) registerKinds(
	ctx context.Context,
	dir string,
	definitions []*apiextensionsv1.CustomResourceDefinition,
	files []gotypes.File,
) (*scaffold.Result, error) {
	folders := map[string]string{} // of groups
	for _, f := range files {
		folders[f.Group] = filepath.Join(dir, filepath.FromSlash(path.Dir(path.Dir(f.Path))))
	}
	var kinds []scaffold.ImportedKind
	for _, d := range definitions {
		k := scaffold.ImportedKind{
			Group: d.Spec.Group, Kind: d.Spec.Names.Kind, Resource: d.Spec.Names.Plural,
			Folder: folders[d.Spec.Group],
		}
		for _, v := range d.Spec.Versions {
			if v.Storage {
				k.Hub = v.Name
			} else {
				k.Versions = append(k.Versions, v.Name)
			}
		}
		kinds = append(kinds, k)
	}
	scaffold.SortImported(kinds)
	result, err := scaffold.Register(scaffold.Options{}, kinds)
	if errors.Is(err, scaffold.ErrNoProject) {
		return &scaffold.Result{
			Notes: []string{"the kinds are not registered: " + strings.TrimPrefix(err.Error(), scaffold.ErrNoProject.Error()+": ")},
			Next:  []string{"annex require && annex generate ./" + filepath.ToSlash(dir) + "/...   # generate code for the types"},
		}, nil
	}
	if err != nil {
		return &scaffold.Result{}, err
	}
	return result, s.generate(ctx, result)
}

func readCRDs(stdin io.Reader, stderr io.Writer, names []string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	from := map[string]string{}
	var without []error
	for _, name := range names {
		definitions, others, err := readCRD(stdin, name)
		// A pattern such as config/crd/*.yaml matches other files, too, for example a kustomization.
		if none := (*gotypes.NoDefinitionError)(nil); errors.As(err, &none) && len(names) > 1 {
			without = append(without, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, other := range others {
			fmt.Fprintf(stderr, "note: %s: skipped %s, which is not a CustomResourceDefinition\n", name, other)
		}
		for _, d := range definitions {
			key := d.Spec.Group + " " + d.Spec.Names.Kind
			if before, ok := from[key]; ok {
				return nil, fmt.Errorf("%s: kind %s of group %s is also in %s: pass only one of "+
					"the files", name, d.Spec.Names.Kind, d.Spec.Group, before)
			}
			from[key] = name
		}
		all = append(all, definitions...)
	}
	if len(all) == 0 {
		return nil, errors.Join(without...)
	}
	for _, err := range without {
		fmt.Fprintf(stderr, "note: %s: skipped the file\n", strings.TrimSuffix(err.Error(), ": pass a file with a CustomResourceDefinition"))
	}
	return all, nil
}

func readCRD(stdin io.Reader, name string) ([]*apiextensionsv1.CustomResourceDefinition, []string, error) {
	if name == "-" {
		return gotypes.Read("standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("import crd: %w", err)
	}
	defer f.Close()
	return gotypes.Read(name, f)
}

func writeFiles(dir string, files []gotypes.File, dryRun bool) error {
	for _, f := range files {
		if f.Exists || dryRun {
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("import crd: %w", err)
		}
		// O_EXCL keeps a file that another process has created meanwhile.
		out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("import crd: %w", err)
		}
		_, err = out.Write(f.Text)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("import crd: %w", err)
		}
	}
	return nil
}

// importOutput is the output with --output json.
type importOutput struct {
	Files []importedFile `json:"files"`
	Notes []gotypes.Note `json:"notes,omitempty"`
	// Server are the files with the registrations, and the generated files.
	Server []scaffold.File `json:"server,omitempty"`
	// Next are the user's next steps.
	Next []string `json:"next,omitempty"`
}

type importedFile struct {
	File string `json:"file"`
	// Written is false for a file that existed with the same content.
	Written bool `json:"written"`
}

func reportImport(
	stdout, stderr io.Writer,
	dir string,
	files []gotypes.File,
	notes []gotypes.Note,
	made *scaffold.Result,
	dryRun, asJSON bool,
) error {
	result := importOutput{Files: []importedFile{}, Notes: notes, Server: made.Files, Next: made.Next}
	for _, f := range files {
		result.Files = append(result.Files, importedFile{filepath.Join(dir, filepath.FromSlash(f.Path)), !f.Exists && !dryRun})
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(result)
	}
	for i, f := range result.Files {
		state := "unchanged"
		switch {
		case f.Written:
			state = "written"
		case !files[i].Exists:
			state = "not written: --dry-run"
		}
		fmt.Fprintf(stdout, "%s\t%s\n", f.File, state)
	}
	for _, f := range made.Files {
		fmt.Fprintf(stdout, "%s\t%s\n", f.Path, f.State)
	}
	for _, n := range notes {
		fmt.Fprintf(stderr, "note: %s\n", n)
	}
	for _, n := range made.Notes {
		fmt.Fprintf(stderr, "note: %s\n", n)
	}
	if len(made.Next) > 0 {
		fmt.Fprintf(stdout, "\nNext:\n  %s\n", strings.Join(made.Next, "\n  "))
	}
	return nil
}
