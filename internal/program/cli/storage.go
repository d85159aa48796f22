package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// storageVerbs are what the verbs below storage share.
type storageVerbs struct {
	program Program
	options config.Options
	storage storageOptions
	tools   serve.ToolOptions
}

func storageCommand(program Program) *cobra.Command {
	v := &storageVerbs{program: program}
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
	storageFlags(flags, &v.storage, &v.options)
	flags.StringVar(&v.tools.Kubeconfig, "kubeconfig", "", "a running server to ask, instead of the one that uses the data directory")
	flags.StringVar(&v.tools.Only, "only", "", "the one storage to work on, such as embedded, of a server that has several")
	cmd.AddCommand(v.dump(), v.backup(), v.restore(), v.migrate(), v.verify(), v.compact(), v.stats(), v.rewrite())
	return cmd
}

// plan is that of the server. Asked of a server elsewhere, the flags say nothing about its
// storages.
func (v *storageVerbs) plan() (*plan.Plan, error) {
	definition, err := v.program.Define()
	if err != nil {
		return nil, err
	}
	if v.tools.Kubeconfig != "" {
		p, err := plan.Everything(definition.Server, config.Options{Storage: memory.Storage()})
		return p, usage(err)
	}
	return v.storage.resolve(definition, v.options)
}

// use opens the tools of a plan, works with them and closes them.
func (v *storageVerbs) use(cmd *cobra.Command, p *plan.Plan, work func(context.Context, maintenance.Tools) error) error {
	logTo(cmd.ErrOrStderr(), logText, 0)
	ctx := cmd.Context()
	tools, err := serve.OpenTools(ctx, p, v.tools)
	if err != nil {
		return usage(err)
	}
	return errors.Join(work(ctx, tools), tools.Close())
}

// useTools is use with the plan of the server.
func (v *storageVerbs) useTools(cmd *cobra.Command, work func(context.Context, maintenance.Tools) error) error {
	p, err := v.plan()
	if err != nil {
		return err
	}
	return v.use(cmd, p, work)
}

// resourceOf returns the stored resource that holds the objects of the one of that name; most
// hold their own.
func resourceOf(p *plan.Plan, name string) (*plan.Resource, error) {
	if r := p.Resource(p.Definition.Owner(schema.ParseGroupResource(name))); r != nil {
		return r, nil
	}
	return nil, usage(fmt.Errorf("--resource %s: this server has no such resource; it has %s", name, p.Names()))
}

func (v *storageVerbs) stats() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Print figures: objects and bytes by resource, versions, revisions, disk, watches",
		Long: `Print figures: the objects of each resource and the bytes of their values as they are
stored, the versions and media types that they are stored in, the newest revision and the
oldest that can still be read exactly, the size of the history and of the files on disk,
and the watches that are open.`,
		Example: fmt.Sprintf("  %s storage stats --data-dir data", v.program.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			return v.useTools(cmd, func(ctx context.Context, tools maintenance.Tools) error {
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
		fmt.Fprintf(w, "\nSTORED AS\tOBJECTS\n")
		for _, r := range s.Resources {
			for _, c := range r.StoredAs {
				fmt.Fprintf(w, "%s %s\t%d\n", r.Resource, formNow(c), c.Objects)
			}
		}
	}
	return w.Flush()
}

// formNow is a form, and what is to be known about it.
func formNow(c maintenance.FormCount) string {
	switch {
	case c.Undecodable:
		return c.String() + " (this server does not have it)"
	case c.Problem != "":
		return c.String() + " (cannot be decoded: " + c.Problem + ")"
	case c.MediaType != "" && c.Old:
		return c.String() + " (until storage rewrite)"
	}
	return c.String()
}

func (v *storageVerbs) dump() *cobra.Command {
	var resource, prefix string
	var records bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print every object as it is stored, as JSON, one in a line",
		Long: `Print every object as it is stored, as JSON, one in a line: its key, its revision, which
is the resource version, when it expires, and its value. A value that is stored as
protobuf is printed as JSON, with its media type beside it. A value that is no object,
such as an encrypted one, is printed in base64; nothing is decrypted.

All objects of a storage are as they were at one revision. With --records, the history of
a stopped server is printed as well: every record that is kept, by revision, with the
revision that it replaced, and deletions.`,
		Example: fmt.Sprintf(`  # the names of all flunders
  %[1]s storage dump --resource flunders.wardle.example.com | jq -r .value.metadata.name`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if resource != "" && prefix != "" {
				return usage(errors.New("give --resource or --prefix, not both"))
			}
			p, err := v.plan()
			if err != nil {
				return err
			}
			if resource != "" {
				r, err := resourceOf(p, resource)
				if err != nil {
					return err
				}
				prefix = r.Prefix + "/"
			}
			toJSON, err := serve.StoredJSON(p.Definition)
			if err != nil {
				return err
			}
			v.tools.Scan = records
			return v.use(cmd, p, func(ctx context.Context, tools maintenance.Tools) error {
				if records {
					return v.dumpRecords(ctx, cmd.OutOrStdout(), tools, prefix)
				}
				_, err := maintenance.DumpTo(ctx, tools, cmd.OutOrStdout(), prefix, toJSON)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&resource, "resource", "", "only objects of this resource, such as flunders.wardle.example.com")
	cmd.Flags().StringVar(&prefix, "prefix", "", "only objects whose keys begin with this")
	cmd.Flags().BoolVar(&records, "records", false, "print every record that is kept, the history too, of a stopped server")
	return cmd
}

func (v *storageVerbs) dumpRecords(ctx context.Context, out io.Writer, tools maintenance.Tools, prefix string) error {
	local, ok := tools.(*maintenance.Local)
	if !ok {
		return usage(errors.New("--records reads the storage itself: stop the server first"))
	}
	err := maintenance.DumpRecords(ctx, local, out, prefix)
	if errors.Is(err, maintenance.ErrNoRecords) {
		return usage(err)
	}
	return err
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
  %[1]s storage backup --to - | ssh elsewhere 'cat > monday.backup'`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usage(errors.New("say where to with --to FILE, or --to - for standard output"))
			}
			return v.useTools(cmd, func(ctx context.Context, tools maintenance.Tools) error {
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

// line is a line that is replaced by the next one, at a terminal.
type line struct {
	out   io.Writer
	shown bool
}

func (l *line) show(text string) {
	if isTerminal(l.out) {
		l.shown = true
		fmt.Fprintf(l.out, "\r\x1b[K%s", text)
	}
}

func (l *line) clear() {
	if l.shown {
		l.shown = false
		fmt.Fprint(l.out, "\r\x1b[K")
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

// copyFlags are those of the verbs that write into a storage.
func copyFlags(cmd *cobra.Command, how *serve.CopyOptions) {
	flags := cmd.Flags()
	flags.Uint64Var(&how.Bump, "bump-revision", 1_000_000_000, "by how much revisions are raised above all that clients may know")
	flags.BoolVar(&how.Replace, "replace", false, "move aside what is in the directory already, to a name with the time")
	flags.BoolVar(
		&how.Overwrite,
		"overwrite",
		false,
		"take these objects where others are in an etcd already, and leave there what is in no way of them",
	)
	flags.BoolVar(&how.ResetWatches, "reset-watches", false, "accept an etcd whose revisions are lower than those that clients know; they "+
		"must be restarted then")
}

const etcdSnapshot = "etcd-snapshot="

func (v *storageVerbs) restore() *cobra.Command {
	var from, to, output string
	how := serve.CopyOptions{}
	cmd := &cobra.Command{
		Use:   "restore --from FILE",
		Short: "Put a backup where a server stores its objects",
		Long: `Put a backup where a server stores its objects, which must be empty, or is moved aside
with --replace. No server may be running. The file is read to its end before anything is
changed, and what is written is read again. An interrupted restore
leaves what was there before.

Objects keep their uid, creation time, finalizers, generation and managed fields. Their
resource versions are new, and higher than any that was seen before: clients that watched
are told that their version has expired, and list again.

With --to etcd-snapshot=FILE the objects are written into a file that etcdutl snapshot
restore takes.`,
		Example: fmt.Sprintf(`  %[1]s storage restore --from monday.backup --data-dir new

  # replace what a server has stored, which stays beside as data/storage.TIME
  %[1]s storage restore --from monday.backup --data-dir data --replace`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return usage(errors.New("say what to restore with --from FILE"))
			}
			if err := v.prepareCopy(cmd, output); err != nil {
				return err
			}
			if to != "" {
				file, ok := strings.CutPrefix(to, etcdSnapshot)
				if !ok || file == "" {
					return usage(fmt.Errorf("--to %q: %sFILE is the only choice; --storage says which storage it is otherwise", to, etcdSnapshot))
				}
				how.SnapshotFile, how.SnapshotOf = file, etcd.Cluster(v.storage.etcd)
			}
			p, err := v.plan()
			if err != nil {
				return err
			}
			contents, done, err := serve.Restore(cmd.Context(), p, from, how)
			if err != nil {
				return copyError(err)
			}
			if contents.Server != v.program.Name {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is a backup of a server called %s\n", from, contents.Server)
			}
			return printCopied(cmd.OutOrStdout(), done, output)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the backup")
	cmd.Flags().StringVar(&to, "to", "", etcdSnapshot+"FILE writes a snapshot for etcdutl instead")
	copyFlags(cmd, &how)
	outputFlag(cmd, &output)
	return cmd
}

func (v *storageVerbs) migrate() *cobra.Command {
	var from, to, output string
	target, targetDir := storageOptions{}, ""
	how := serve.CopyOptions{}
	cmd := &cobra.Command{
		Use:   "migrate --from STORAGE --to STORAGE",
		Short: "Copy all objects from one storage to another",
		Long: `Copy all objects from one storage to another: embedded, files, or etcd. No server may
be running. The storage that is copied from stays as it is.

Objects keep their uid, creation time, finalizers, generation and managed fields. What has
been written is read again and compared. It can be run again: objects that are there
already, and are the same, are left alone; any others are an error before anything is
written.

Resource versions are higher afterwards than any that was seen before. An etcd that runs
cannot be raised to that, and is refused if it is behind; there are two ways then.
--to etcd-snapshot=FILE writes a snapshot with raised revisions, for etcdutl snapshot
restore to make a new etcd of. --reset-watches writes all the same: every client that has
seen objects before must be restarted.`,
		Example: fmt.Sprintf(`  # from the data directory to a new etcd
  %[1]s storage migrate --from embedded --data-dir data --to etcd-snapshot=new.db
  etcdutl snapshot restore new.db --data-dir /var/lib/etcd

  # and back
  %[1]s storage migrate --from etcd --etcd-servers https://etcd-1:2379 --etcd-cafile ca.pem --to embedded --to-data-dir data`,
			v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || to == "" {
				return usage(errors.New("say what to copy with --from STORAGE and --to STORAGE"))
			}
			if err := v.prepareCopy(cmd, output); err != nil {
				return err
			}
			definition, err := v.program.server()
			if err != nil {
				return err
			}
			target.storage, target.media = storageName{to, true}, v.storage.media
			if file, ok := strings.CutPrefix(to, etcdSnapshot); ok {
				if file == "" {
					return usage(fmt.Errorf("--to %s: name the file, as in %snew.db", to, etcdSnapshot))
				}
				snapshots := etcd.Cluster(target.etcd)
				target.storage.name, how.SnapshotFile, how.SnapshotOf = snapshots.Name(), file, snapshots
			}
			if to == etcd.Name && len(target.etcd.Endpoints) == 0 {
				return usage(errors.New("no etcd endpoints: name the members' URLs with --to-etcd-servers, as in https://etcd-1:2379"))
			}
			v.storage.storage, v.storage.storageOf = storageName{from, true}, nil
			source, err := v.storage.everything(definition, v.options)
			if err != nil {
				return err
			}
			if cmd.Flag("to-data-dir").Changed {
				v.options.DataDir = targetDir
			}
			copied, err := target.everything(definition, v.options)
			if err != nil {
				return err
			}
			done, err := serve.Migrate(cmd.Context(), source, copied, how)
			if err != nil {
				return copyError(err)
			}
			return printCopied(cmd.OutOrStdout(), []serve.Copied{done}, output)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&from, "from", "", "the storage to copy from, which --data-dir or --etcd-servers tell more about")
	flags.StringVar(&to, "to", "", "the storage to copy to, or "+etcdSnapshot+"FILE")
	flags.StringVar(&targetDir, "to-data-dir", "", "data directory to copy to (default: --data-dir)")
	flags.StringVar(&target.filesDir, "to-files-dir", "", "directory of files to copy to (default: objects in the data directory to copy to)")
	etcdFlags(flags, &target.etcd, "to-")
	copyFlags(cmd, &how)
	outputFlag(cmd, &output)
	return cmd
}

// prepareCopy checks what the verbs that write into a storage have in common.
func (v *storageVerbs) prepareCopy(cmd *cobra.Command, output string) error {
	if v.tools.Kubeconfig != "" || v.tools.Only != "" {
		return usage(fmt.Errorf("%s works on stopped servers, as a whole: leave --kubeconfig and --only away", cmd.CommandPath()))
	}
	logTo(cmd.ErrOrStderr(), logText, 0)
	return checkOutput(output)
}

// copyError says whose fault it is: what is refused before anything is written is
// the user's.
func copyError(err error) error {
	for _, refused := range []error{maintenance.ErrBackup, maintenance.ErrNotEmpty, maintenance.ErrBehind, maintenance.ErrExists,
		maintenance.ErrEncrypted, journal.ErrLocked, fs.ErrNotExist} {
		if errors.Is(err, refused) {
			return usage(err)
		}
	}
	return err
}

func printCopied(out io.Writer, done []serve.Copied, output string) error {
	if output == "json" {
		return printJSON(out, done)
	}
	for _, c := range done {
		if c.Skipped {
			fmt.Fprintf(out, "%s: left out, it lives as long as its server\n", c.Storage)
			continue
		}
		fmt.Fprintf(out, "%s: %d objects, %d written; the revision is %d\n", c.Storage, c.Objects, c.Written, c.Revision)
		if c.Aside != "" {
			fmt.Fprintf(out, "%s: what was there before is in %s\n", c.Storage, shortPath(c.Aside))
		}
	}
	return nil
}

func (v *storageVerbs) verify() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read everything that is stored and report what is damaged",
		Long: `Read everything that is stored, the history too, and report what is damaged: checksums
that do not fit, revisions that are missing, and objects that this program cannot
decrypt or decode. Nothing is changed. The exit code is 1 if there is damage.`,
		Example: fmt.Sprintf("  %s storage verify --data-dir data", v.program.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			v.tools.Scan = true
			return v.useTools(cmd, func(ctx context.Context, tools maintenance.Tools) error {
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
		Example: fmt.Sprintf("  %s storage compact --revision 12345", v.program.Name),
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
			return v.useTools(cmd, func(ctx context.Context, tools maintenance.Tools) error {
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
