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

// storageVerbs is the state that the verbs below storage share.
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
		Short: "Back up, verify and inspect the stored objects",
		Long: `Back up, verify and inspect the stored objects.

The verbs have the same storage flags as serve. If a server is using the data directory,
they send requests to it, with the kubeconfig in the data directory or the one of
--kubeconfig. Otherwise they open the storage themselves, and no server can start
meanwhile.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	storageFlags(flags, &v.storage, &v.options)
	flags.StringVar(&v.tools.Kubeconfig, "kubeconfig", "", "kubeconfig of a running server, instead of the server that uses the data "+
		"directory")
	flags.StringVar(&v.tools.Only, "only", "", "storage to work on, such as embedded, if the server has several")
	cmd.AddCommand(v.dump(), v.backup(), v.restore(), v.migrate(), v.verify(), v.compact(), v.stats(), v.rewrite())
	return cmd
}

// plan returns the plan of the server. If the verb asks a server elsewhere, the storage flags are not used.
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

// use opens the tools of a plan, calls work with them and closes them.
func (v *storageVerbs) use(cmd *cobra.Command, p *plan.Plan, work func(context.Context, maintenance.Tools) error) error {
	logTo(cmd.Context(), cmd.ErrOrStderr(), logText, 0)
	ctx := cmd.Context()
	tools, err := serve.OpenTools(ctx, p, v.tools)
	if err != nil {
		return usage(err)
	}
	return errors.Join(work(ctx, tools), tools.Close())
}

// useTools calls use with the plan of the server.
func (v *storageVerbs) useTools(cmd *cobra.Command, work func(context.Context, maintenance.Tools) error) error {
	p, err := v.plan()
	if err != nil {
		return err
	}
	return v.use(cmd, p, work)
}

// resourceOf returns the stored resource whose objects the resource with the given name shows. That is usually the
// resource itself.
func resourceOf(p *plan.Plan, name string) (*plan.Resource, error) {
	if r := p.Resource(p.Definition.Owner(schema.ParseGroupResource(name))); r != nil {
		return r, nil
	}
	return nil, usage(fmt.Errorf("--resource %s: unknown resource; resources of this server: %s", name, p.Names()))
}

func (v *storageVerbs) stats() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Print statistics: objects and bytes by resource, versions, revisions, disk, watches",
		Long: `Print statistics: the number of objects of each resource and the size of their stored values,
the versions and media types of stored objects, the newest revision and the oldest revision
that clients can still read exactly, the size of the history and of the files on disk, and
the number of open watches.`,
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
			{"kept revisions", uint64(s.KeptRevisions)},
			{"bytes of kept revisions", uint64(s.KeptBytes)},
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

// formNow formats a stored form and its problems.
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
		Short: "Print every stored object as JSON, one per line",
		Long: `Print every stored object as JSON, one per line: key, revision (which is the resource version),
expiration time and value. The verb prints protobuf values as JSON, together with their media
type. It prints values that are not objects, such as encrypted ones, in base64, and decrypts
nothing.

All objects of a storage are read at the same revision. With --records, the verb also prints
the history of a stopped server: every kept record by revision, with the revision that it
replaced, and deletions.`,
		Example: fmt.Sprintf(`  # the names of all flunders
  %[1]s storage dump --resource flunders.wardle.example.com | jq -r .value.metadata.name`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if resource != "" && prefix != "" {
				return usage(errors.New("--resource and --prefix exclude each other"))
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
	cmd.Flags().StringVar(&prefix, "prefix", "", "only objects with this key prefix")
	cmd.Flags().BoolVar(&records, "records", false, "also print the history: every kept record of a stopped server")
	return cmd
}

func (v *storageVerbs) dumpRecords(ctx context.Context, out io.Writer, tools maintenance.Tools, prefix string) error {
	local, ok := tools.(*maintenance.Local)
	if !ok {
		return usage(errors.New("--records requires a stopped server: it reads the files of the storage"))
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
		Short: "Write all stored objects into a file, at one revision",
		Long: `Write all stored objects into a file, at one revision. A running server keeps serving, and its
writers do not wait.

Only the owner can read the file. The verb writes either the complete file, with checksums, or
none. Encrypted objects stay encrypted: to restore them, you need the same encryption
configuration.`,
		Example: fmt.Sprintf(`  %[1]s storage backup --to monday.backup

  # to another machine; storage restore checks that the file is complete
  %[1]s storage backup --to - | ssh elsewhere 'cat > monday.backup'`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usage(errors.New("--to is missing: use --to FILE, or --to - for standard output"))
			}
			return v.useTools(cmd, func(ctx context.Context, tools maintenance.Tools) error {
				counted := &progress{out: cmd.ErrOrStderr(), what: "backup"}
				contents, err := writeBackup(ctx, counting{tools, counted}, cmd.OutOrStdout(), to, force)
				counted.end()
				if errors.Is(err, maintenance.ErrExists) {
					return usage(fmt.Errorf("%w: use --force to replace it", err))
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "backed up %d objects%s\n", contents.Objects, revisionsOf(contents.Header))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "file to write; - is standard output")
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return cmd
}

func writeBackup(ctx context.Context, tools maintenance.Tools, out io.Writer, to string, force bool) (maintenance.Contents, error) {
	if to == "-" {
		return maintenance.BackupTo(ctx, tools, out)
	}
	return maintenance.BackupFile(ctx, tools, to, force)
}

// revisionsOf formats the revisions of the storages in a backup.
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

// counting wraps tools to report the progress of backups.
type counting struct {
	maintenance.Tools
	progress *progress
}

func (c counting) Backup(ctx context.Context, to io.Writer) error {
	return c.Tools.Backup(ctx, io.MultiWriter(to, c.progress))
}

// progress shows the progress of a long operation at a terminal. If the output is no terminal it prints nothing:
// each verb prints its result at the end.
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

// line is a terminal line that the next one overwrites.
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

// copyFlags declares the flags of the verbs that write into a storage.
func copyFlags(cmd *cobra.Command, how *serve.CopyOptions) {
	flags := cmd.Flags()
	flags.Uint64Var(&how.Bump, "bump-revision", 1_000_000_000, "number to add to the revisions, so that they exceed all revisions that "+
		"clients have seen")
	flags.BoolVar(&how.Replace, "replace", false, "rename an existing storage directory to a name with the time, and keep it")
	flags.BoolVar(
		&how.Overwrite,
		"overwrite",
		false,
		"overwrite different objects with the same keys in etcd; other objects in etcd stay",
	)
	flags.BoolVar(&how.ResetWatches, "reset-watches", false, "accept an etcd whose revisions are lower than revisions that clients "+
		"have seen; restart these clients afterwards")
}

const etcdSnapshot = "etcd-snapshot="

func (v *storageVerbs) restore() *cobra.Command {
	var from, to, output string
	how := serve.CopyOptions{}
	cmd := &cobra.Command{
		Use:   "restore --from FILE",
		Short: "Restore a backup into the storage of a server",
		Long: `Restore a backup into the storage of a server. The storage must be empty, unless --replace moves
it aside. No server may be running. The verb reads the whole backup before it changes anything,
and reads the restored objects again to verify them. An interrupted restore keeps the previous
storage.

Objects keep their uid, creation time, finalizers, generation and managed fields. They get new
resource versions, higher than all that clients have seen: watches of clients fail with an
expired resource version, and clients list again.

With --to etcd-snapshot=FILE, the verb writes the objects into a file for etcdutl snapshot
restore.`,
		Example: fmt.Sprintf(`  %[1]s storage restore --from monday.backup --data-dir new

  # replace the objects of a server; the old storage is kept as data/storage.TIME
  %[1]s storage restore --from monday.backup --data-dir data --replace`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return usage(errors.New("--from is missing: use --from FILE, with the backup to restore"))
			}
			if err := v.prepareCopy(cmd, output); err != nil {
				return err
			}
			if to != "" {
				file, ok := strings.CutPrefix(to, etcdSnapshot)
				if !ok || file == "" {
					return usage(fmt.Errorf("--to %q: the only supported value is %sFILE; to select a storage, use "+
						"--storage", to, etcdSnapshot))
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
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is a backup of another server, %s\n", from, contents.Server)
			}
			return printCopied(cmd.OutOrStdout(), done, output)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the backup")
	cmd.Flags().StringVar(&to, "to", "", etcdSnapshot+"FILE writes a snapshot for etcdutl, instead of the storage")
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
		Long: `Copy all objects from one storage to another: embedded, files, or etcd. No server may be
running. The source storage does not change.

Objects keep their uid, creation time, finalizers, generation and managed fields. The verb
reads the written objects again and compares them. You can run the verb again: it skips
equal objects in the target, and fails before it writes anything if the target has other
objects.

The target has higher resource versions than all that clients have seen. The verb cannot
raise the revision of a running etcd, and fails if that revision is too low. Then use one
of two flags: --to etcd-snapshot=FILE writes a snapshot with raised revisions, from which
etcdutl snapshot restore creates a new etcd. --reset-watches writes into the etcd despite
its revision: restart all clients that have seen the objects.`,
		Example: fmt.Sprintf(`  # from the data directory to a new etcd
  %[1]s storage migrate --from embedded --data-dir data --to etcd-snapshot=new.db
  etcdutl snapshot restore new.db --data-dir /var/lib/etcd

  # and back
  %[1]s storage migrate --from etcd --etcd-servers https://etcd-1:2379 --etcd-cafile ca.pem --to embedded --to-data-dir data`,
			v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || to == "" {
				return usage(errors.New("--from or --to is missing: use --from STORAGE and --to STORAGE"))
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
					return usage(fmt.Errorf("--to %s: add the name of the file, as in %snew.db", to, etcdSnapshot))
				}
				snapshots := etcd.Cluster(target.etcd)
				target.storage.name, how.SnapshotFile, how.SnapshotOf = snapshots.Name(), file, snapshots
			}
			if to == etcd.Name && len(target.etcd.Endpoints) == 0 {
				return usage(errors.New("no etcd endpoints: set the URLs of the members with --to-etcd-servers, as in https://etcd-1:2379"))
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
	flags.StringVar(&from, "from", "", "source storage; its location is set by --data-dir or --etcd-servers")
	flags.StringVar(&to, "to", "", "target storage, or "+etcdSnapshot+"FILE")
	flags.StringVar(&targetDir, "to-data-dir", "", "data directory of the target (default: --data-dir)")
	flags.StringVar(&target.filesDir, "to-files-dir", "", "directory of the target storage named files (default: objects in the data "+
		"directory of the target)")
	etcdFlags(flags, &target.etcd, "to-")
	copyFlags(cmd, &how)
	outputFlag(cmd, &output)
	return cmd
}

// prepareCopy performs the checks that the verbs that write into a storage share.
func (v *storageVerbs) prepareCopy(cmd *cobra.Command, output string) error {
	if v.tools.Kubeconfig != "" || v.tools.Only != "" {
		return usage(fmt.Errorf("%s requires a stopped server, and handles all its storages: remove --kubeconfig "+
			"and --only", cmd.CommandPath()))
	}
	logTo(cmd.Context(), cmd.ErrOrStderr(), logText, 0)
	return checkOutput(output)
}

// copyError classifies an error: a copy that was rejected before anything was written is a usage error.
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
			fmt.Fprintf(out, "%s: skipped, its objects exist only while the server runs\n", c.Storage)
			continue
		}
		fmt.Fprintf(out, "%s: %d objects, %d written; the revision is %d\n", c.Storage, c.Objects, c.Written, c.Revision)
		if c.Aside != "" {
			fmt.Fprintf(out, "%s: the previous storage is in %s\n", c.Storage, shortPath(c.Aside))
		}
	}
	return nil
}

func (v *storageVerbs) verify() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify the stored objects and their history",
		Long: `Read all stored objects and the history, and report wrong checksums, missing revisions, and
objects that this program cannot decrypt or decode. The verb changes nothing. The exit code
is 1 if it finds damage.`,
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
					return fmt.Errorf("found %d damages: restore a backup", result.Damages)
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
		Short: "Compact the history up to a revision",
		Long: `Compact the history up to a revision, by default all of it. Current objects stay. Watches and
lists at older revisions fail with an expired resource version, and clients list again. A
running server also compacts its history by itself.`,
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
	cmd.Flags().StringVar(&revision, "revision", "", "oldest revision that stays readable (default: the newest)")
	outputFlag(cmd, &output)
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json prints for machines")
}

func checkOutput(output string) error {
	if output != "" && output != "json" {
		return usage(fmt.Errorf("--output %q: the only supported format is json", output))
	}
	return nil
}

func printJSON(out io.Writer, content any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(content)
}
