package annex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/maintenance"
	"github.com/annexapi/annex/internal/serve"
)

// storageVerbs are what the verbs below storage share.
type storageVerbs struct {
	server  Server
	options Options
	tools   serve.ToolOptions
}

func storageCommand(server Server) *cobra.Command {
	v := &storageVerbs{server: server}
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Back up, check and look into what is stored",
		Long: `Back up, check and look into what is stored.

The verbs take the flags that tell serve where it stores what. If a server is using
the data directory, they ask it by means of the kubeconfig there, or the one given
with --kubeconfig; else they open the storage themselves, and no server can start
meanwhile.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	storageFlags(flags, &v.options)
	flags.StringVar(&v.tools.Kubeconfig, "kubeconfig", "", "a running server to ask, instead of the one that uses the data directory")
	flags.StringVar(&v.tools.Only, "only", "", "the one storage to work on, such as embedded, of a server that has several")
	cmd.AddCommand(v.dump(), v.backup(), v.verify(), v.compact(), v.stats(), v.rewrite())
	return cmd
}

// open returns the tools. They are closed by use.
func (v *storageVerbs) open(ctx context.Context) (maintenance.Tools, error) {
	definition, err := v.server.define()
	if err != nil {
		return nil, err
	}
	tools, err := serve.OpenTools(ctx, definition, serve.Options(v.options), v.tools)
	return tools, usage(err)
}

// use opens the tools, works with them and closes them.
func (v *storageVerbs) use(cmd *cobra.Command, work func(context.Context, maintenance.Tools) error) error {
	logTo(cmd.ErrOrStderr(), 0)
	ctx := cmd.Context()
	tools, err := v.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, tools), tools.Close())
}

func (v *storageVerbs) stats() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Print figures: objects and bytes by resource, revisions, disk, watches",
		Long: `Print figures: the objects of each resource and the bytes of their values as they are
stored, the newest revision and the oldest that can still be read exactly, the size of
the history and of the files on disk, and the watches that are open.`,
		Example: fmt.Sprintf("  %s storage stats --data-dir data", v.server.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			return v.use(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				stats, err := tools.Stats(ctx)
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(cmd.OutOrStdout(), stats)
				}
				return printStats(cmd.OutOrStdout(), stats)
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printStats(out io.Writer, all []maintenance.Stats) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "storage\t%s\nrevision\t%d\n", s.Storage, s.Revision)
		for _, line := range []struct {
			name  string
			value uint64
		}{
			{"compacted revision", s.Compacted},
			{"revisions in the history", uint64(s.HistoryEvents)},
			{"bytes in the history", uint64(s.HistoryBytes)},
			{"bytes on disk", s.DiskBytes},
			{"watches", uint64(s.Watches)},
		} {
			if line.value != 0 {
				fmt.Fprintf(w, "%s\t%d\n", line.name, line.value)
			}
		}
		fmt.Fprintf(w, "\nRESOURCE\tOBJECTS\tBYTES\n")
		for _, r := range s.Resources {
			name := r.Resource
			if r.Unknown {
				name += " (no kind of this server)"
			}
			fmt.Fprintf(w, "%s\t%d\t%d\n", name, r.Objects, r.Bytes)
		}
		fmt.Fprintf(w, "total\t%d\t%d\n", s.Objects, s.Bytes)
	}
	return w.Flush()
}

func (v *storageVerbs) dump() *cobra.Command {
	var resource, prefix string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print every object as it is stored, as JSON, one in a line",
		Long: `Print every object as it is stored, as JSON, one in a line: its key, its revision, which
is the resource version, when it expires, and its value. A value that is not JSON, such
as an encrypted one, is printed in base64; nothing is decrypted.

All objects of a storage are as they were at one revision.`,
		Example: fmt.Sprintf(`  # the names of all flunders
  %[1]s storage dump --resource flunders.wardle.example.com | jq -r .value.metadata.name`, v.server.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if resource != "" {
				if prefix != "" {
					return usage(errors.New("give --resource or --prefix, not both"))
				}
				var err error
				if prefix, err = v.prefixOf(resource); err != nil {
					return err
				}
			}
			return v.use(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				read, write := io.Pipe()
				go func() { _ = write.CloseWithError(tools.Backup(ctx, write)) }() // never fails
				_, err := maintenance.Dump(read, cmd.OutOrStdout(), prefix)
				return errors.Join(err, read.Close())
			})
		},
	}
	cmd.Flags().StringVar(&resource, "resource", "", "only objects of this resource, such as flunders.wardle.example.com")
	cmd.Flags().StringVar(&prefix, "prefix", "", "only objects whose keys begin with this")
	return cmd
}

// prefixOf returns what the keys of a resource begin with.
func (v *storageVerbs) prefixOf(name string) (string, error) {
	definition, err := v.server.define()
	if err != nil {
		return "", err
	}
	prefix, known, err := serve.PrefixOf(definition, schema.ParseGroupResource(name))
	if err == nil && prefix == "" {
		err = usage(fmt.Errorf("--resource %s: this server has no such resource; it has %s", name, strings.Join(known, ", ")))
	}
	return prefix + "/", err
}

func (v *storageVerbs) backup() *cobra.Command {
	var to string
	var force bool
	cmd := &cobra.Command{
		Use:   "backup --to FILE",
		Short: "Write everything that is stored into a file, at one revision",
		Long: `Write everything that is stored into a file, at one revision. A server that runs goes on
meanwhile, and its writers do not wait.

The file is readable by its owner only. It is there as a whole, with checksums, or not
at all. What is encrypted stays so: restoring it needs the same encryption
configuration.`,
		Example: fmt.Sprintf(`  %[1]s storage backup --to monday.backup

  # to somewhere else; check with storage restore that it has arrived whole
  %[1]s storage backup --to - | ssh elsewhere 'cat > monday.backup'`, v.server.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usage(errors.New("say where to with --to FILE, or --to - for standard output"))
			}
			return v.use(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				counted := &progress{out: cmd.ErrOrStderr(), what: "backup"}
				contents, err := writeBackup(ctx, counting{tools, counted}, cmd.OutOrStdout(), to, force)
				counted.end()
				if errors.Is(err, maintenance.ErrExists) {
					return usage(fmt.Errorf("%w: --force replaces it", err))
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "backed up %d objects%s\n", contents.Objects, revisionsOf(contents.Header))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the file to write; - is standard output")
	cmd.Flags().BoolVar(&force, "force", false, "replace the file if it is there already")
	return cmd
}

func writeBackup(ctx context.Context, tools maintenance.Tools, out io.Writer, to string, force bool) (maintenance.Contents, error) {
	if to == "-" {
		return maintenance.BackupTo(ctx, tools, out)
	}
	return maintenance.BackupFile(ctx, tools, to, force)
}

// revisionsOf says at which revision a backup is.
func revisionsOf(h maintenance.Header) string {
	var text string
	for i, s := range h.Storages {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" of %s at revision %d", s.Name, s.Revision)
	}
	return text
}

// counting are tools whose backups are counted.
type counting struct {
	maintenance.Tools
	progress *progress
}

func (c counting) Backup(ctx context.Context, to io.Writer) error {
	return c.Tools.Backup(ctx, io.MultiWriter(to, c.progress))
}

// progress tells a person at a terminal how far a long work has got. Elsewhere it
// is silent: what has been done is printed at the end.
type progress struct {
	out   io.Writer
	what  string
	bytes atomic.Int64
	shown time.Time
}

func (p *progress) Write(data []byte) (int, error) {
	bytes := p.bytes.Add(int64(len(data)))
	if isTerminal(p.out) && time.Since(p.shown) > time.Second/5 {
		p.shown = time.Now()
		fmt.Fprintf(p.out, "\r%s: %.1f MiB", p.what, float64(bytes)/(1<<20))
	}
	return len(data), nil
}

// end clears the line.
func (p *progress) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (v *storageVerbs) verify() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read everything that is stored and report what is damaged",
		Long: `Read everything that is stored, the history too, and report what is damaged: checksums
that do not fit, revisions that are missing, and objects that this program cannot
decrypt or decode. Nothing is changed. The exit code is 1 if there is damage.`,
		Example: fmt.Sprintf("  %s storage verify --data-dir data", v.server.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			v.tools.Scan = true
			return v.use(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				out := cmd.OutOrStdout()
				result := struct {
					Findings []maintenance.Finding `json:"findings"`
					maintenance.Verified
				}{Findings: []maintenance.Finding{}}
				var err error
				result.Verified, err = tools.Verify(ctx, func(f maintenance.Finding) {
					if output == "json" {
						result.Findings = append(result.Findings, f)
						return
					}
					fmt.Fprintln(out, f)
				})
				if err != nil {
					return err
				}
				if output == "json" {
					if err := printJSON(out, result); err != nil {
						return err
					}
				} else {
					fmt.Fprintf(out, "%d objects, %d records, %d damages, %d warnings\n", result.Objects, result.Records, result.Damages, result.Warnings)
				}
				if result.Damages > 0 {
					return fmt.Errorf("%d damages: restore a backup", result.Damages)
				}
				return nil
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func (v *storageVerbs) compact() *cobra.Command {
	var revision, output string
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Forget the history up to a revision",
		Long: `Forget the history up to a revision, by default all of it. Current objects stay. Watches
and lists at older revisions are told that these have expired, after which clients list
again. Servers compact by themselves as time goes by.`,
		Example: fmt.Sprintf("  %s storage compact --revision 12345", v.server.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			wanted := uint64(0)
			if revision != "" {
				var err error
				if wanted, err = strconv.ParseUint(revision, 10, 63); err != nil || wanted == 0 {
					return usage(fmt.Errorf("--revision %s is not a revision", revision))
				}
			}
			return v.use(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				done, err := tools.Compact(ctx, wanted)
				if errors.Is(err, maintenance.ErrAhead) {
					return usage(err)
				}
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(cmd.OutOrStdout(), done)
				}
				for _, c := range done {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: compacted to revision %d\n", c.Storage, c.Revision)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&revision, "revision", "", "the oldest revision that is to stay readable (default: the newest)")
	outputFlag(cmd, &output)
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json prints for machines")
}

func checkOutput(output string) error {
	if output != "" && output != "json" {
		return usage(fmt.Errorf("--output %q: json is the only format", output))
	}
	return nil
}

func printJSON(out io.Writer, content any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(content)
}
