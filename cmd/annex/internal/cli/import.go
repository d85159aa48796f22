package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/cmd/annex/internal/crd/gotypes"
)

func newImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Write Go API packages from the form of another tool",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImportCRD())
	return cmd
}

func newImportCRD() *cobra.Command {
	var output, dir string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "crd FILE...",
		Short: "Write Go types from CustomResourceDefinitions",
		Long: `Writes Go types with kubebuilder's markers from CustomResourceDefinitions in YAML or
JSON files; - is standard input. There is a package for each group and version,
DIR/GROUP/VERSION, where GROUP is the first label of the group, and in it a file for
each kind. What annex export crd makes of the types is the same schema again; where it
is not, because there is no marker for something, a note on standard error says so.

Nothing is ever overwritten: a file that is there and says something else is an error,
and then nothing is written. Afterwards, annex generate writes what a server needs
beside the types.`,
		Example: `  annex import crd certificates.yaml
  kubectl get crd certificates.cert-manager.io -o yaml | annex import crd - --dir apis
  annex import crd config/crd/*.yaml --dry-run`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name a file with a CustomResourceDefinition, or - for standard input")
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
			if err := writeFiles(dir, files, dryRun); err != nil {
				return err
			}
			return reportImport(cmd.OutOrStdout(), cmd.ErrOrStderr(), dir, files, notes, dryRun, output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	cmd.Flags().StringVar(&dir, "dir", "apis", "folder to write the packages into")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "name the files and write nothing")
	return cmd
}

func readCRDs(stdin io.Reader, stderr io.Writer, names []string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	from := map[string]string{}
	for _, name := range names {
		definitions, others, err := readCRD(stdin, name)
		if err != nil {
			return nil, err
		}
		for _, other := range others {
			fmt.Fprintf(stderr, "note: %s: %s is left out: it is no CustomResourceDefinition\n", name, other)
		}
		for _, d := range definitions {
			key := d.Spec.Group + " " + d.Spec.Names.Kind
			if before, ok := from[key]; ok {
				return nil, fmt.Errorf("%s: kind %s of group %s is in %s, too: give one of them", name, d.Spec.Names.Kind, d.Spec.Group, before)
			}
			from[key] = name
		}
		all = append(all, definitions...)
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
		// Whoever made the file meanwhile keeps it.
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

// imported is what --output json prints.
type imported struct {
	Files []importedFile `json:"files"`
	Notes []gotypes.Note `json:"notes,omitempty"`
}

type importedFile struct {
	File string `json:"file"`
	// Written is false for a file that was there, as it would be written.
	Written bool `json:"written"`
}

func reportImport(stdout, stderr io.Writer, dir string, files []gotypes.File, notes []gotypes.Note, dryRun, asJSON bool) error {
	result := imported{Files: []importedFile{}, Notes: notes}
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
	for _, n := range notes {
		fmt.Fprintf(stderr, "note: %s\n", n)
	}
	return nil
}
