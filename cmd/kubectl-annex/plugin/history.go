package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// point is how flags name a moment in the history.
const pointUsage = "a revision, a time such as 2026-11-28T06:30:00Z, or an age such as -10m"

// pastPage is a page of the history of an object.
type pastPage struct {
	Items []struct {
		Revision, Time, Operation, User, Subresource string
		Managers                                     []string
		Changes                                      []change
		More                                         bool
	}
	Since  struct{ Revision, Time string }
	Before string
}

// change is a field that has changed.
type change struct {
	Path     string
	From, To any
}

func (c change) String() string {
	return fmt.Sprintf("%s: %s -> %s", c.Path, valueText(c.From), valueText(c.To))
}

// valueText returns a value as one line of JSON; a missing value is a dash.
func valueText(value any) string {
	if value == nil {
		return "-"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return printable(string(text))
}

// readable reports whether a kind's objects can be read, as objects with a history can.
func readable(r resource) bool { return slices.Contains(r.verbs, "get") }

// historyRequest returns a request for the history of an object, or of a resource if the object has no name.
func (p *plugin) historyRequest(verb string, o object) (*rest.Request, error) {
	client, err := p.server.client()
	if err != nil {
		return nil, err
	}
	group := o.Group
	if group == "" {
		group = "core"
	}
	path := []string{"/history", group, o.Version}
	if o.namespace != "" {
		path = append(path, "namespaces", o.namespace)
	}
	path = append(path, o.Resource)
	if o.name != "" {
		path = append(path, o.name)
	}
	return client.Verb(verb).AbsPath(path...).SetHeader("Accept", "application/json"), nil
}

// historyVerb is a verb for the history of one object.
func (p *plugin) historyVerb(cmd *cobra.Command, run func(ctx context.Context, o object) error) *cobra.Command {
	cmd.Args = cobra.MaximumNArgs(2)
	cmd.ValidArgsFunction = p.completeObjects(readable)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		o, err := p.object(words, "get", readable)
		if err != nil {
			return err
		}
		return run(cmd.Context(), o)
	}
	return cmd
}

// outputFlag declares --output with json, yaml and, if there is one, another form, which is the default.
func outputFlag(flags *pflag.FlagSet, output *string, otherwise string) {
	usage := "json or yaml"
	if otherwise != "yaml" {
		usage = otherwise + ", json or yaml"
	}
	flags.StringVarP(output, "output", "o", otherwise, usage)
}

// printAs prints an answer as JSON or YAML. It returns false for another form, otherwise.
func (p *plugin) printAs(output, otherwise string, answer []byte) (printed bool, err error) {
	switch output {
	case "json":
		var value any
		if err := json.Unmarshal(answer, &value); err != nil {
			return true, fmt.Errorf("read the answer: %w", err)
		}
		if answer, err = json.MarshalIndent(value, "", "  "); err != nil {
			return true, err
		}
		_, err = fmt.Fprintln(p.Out, string(answer))
		return true, err
	case "yaml":
		if answer, err = yaml.JSONToYAML(answer); err != nil {
			return true, fmt.Errorf("read the answer: %w", err)
		}
		_, err = p.Out.Write(answer)
		return true, err
	case otherwise:
		return false, nil
	}
	return true, misuse("--output %q: use %s", output, strings.Join(slices.Compact([]string{otherwise, "json", "yaml"}), ", "))
}

func (p *plugin) newHistory() *cobra.Command {
	var limit int
	var before, output string
	cmd := p.historyVerb(&cobra.Command{
		Use:   "history KIND/NAME",
		Short: "List the revisions of an object: who wrote when, by which manager, and what changed",
		Long: `Lists the revisions of an object that the server keeps, the newest first. A server keeps the revisions that watches
need, and more of the kinds with a History. It knows the users of these kinds alone.`,
		Example: `  ` + p.called() + ` history widget/x
  ` + p.called() + ` history widget/x --limit=5 -o yaml`,
	}, func(ctx context.Context, o object) error {
		request, err := p.historyRequest("GET", o)
		if err != nil {
			return err
		}
		request.Param("limit", strconv.Itoa(limit))
		if before != "" {
			request.Param("before", before)
		}
		answer, err := do(ctx, request)
		if err != nil {
			return err
		}
		if printed, err := p.printAs(output, "table", answer); printed {
			return err
		}
		return p.printHistory(answer)
	})
	cmd.Flags().IntVar(&limit, "limit", 20, "largest number of revisions")
	cmd.Flags().StringVar(&before, "before", "", "list the revisions before this one")
	outputFlag(cmd.Flags(), &output, "table")
	return cmd
}

// mostShown is the number of changed fields in a line of a table.
const mostShown = 3

func (p *plugin) printHistory(answer []byte) error {
	var page pastPage
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	table := printers.GetNewTabWriter(p.Out)
	fmt.Fprintln(table, "REVISION\tTIME\tOPERATION\tUSER\tMANAGER\tCHANGES")
	for _, r := range page.Items {
		var changes []string
		for _, c := range r.Changes[:min(len(r.Changes), mostShown)] {
			changes = append(changes, printable(c.String()))
		}
		if more := len(r.Changes) - mostShown; more > 0 {
			changes = append(changes, fmt.Sprintf("and %d more", more))
		}
		if r.Subresource != "" {
			r.Operation += " " + r.Subresource
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Revision, seconds(r.Time), r.Operation, orDash(r.User),
			orDash(strings.Join(r.Managers, ",")), strings.Join(changes, "; "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if page.Before != "" {
		fmt.Fprintf(p.ErrOut, "There are more: --before=%s lists them.\n", page.Before)
	} else if page.Since.Revision != "" {
		fmt.Fprintf(p.ErrOut, "Kept since revision %s%s.\n", page.Since.Revision, comma(seconds(page.Since.Time)))
	}
	return nil
}

// seconds cuts the fraction of a time.
func seconds(when string) string {
	if whole, _, cut := strings.Cut(when, "."); cut {
		return whole + "Z"
	}
	return when
}

func comma(text string) string {
	if text == "" {
		return ""
	}
	return ", " + text
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return printable(text)
}

func (p *plugin) newDiff() *cobra.Command {
	var from, to, output string
	cmd := p.historyVerb(&cobra.Command{
		Use:   "diff KIND/NAME --from=POINT [--to=POINT]",
		Short: "Show what changed in an object between two moments",
		Long:  "Shows the fields of an object that changed between two moments, the second of which is now by default.",
		Example: `  ` + p.called() + ` diff widget/x --from=41 --to=43
  ` + p.called() + ` diff widget/x --from=-1h`,
	}, func(ctx context.Context, o object) error {
		if from == "" {
			return misuse("--from is missing: %s", pointUsage)
		}
		request, err := p.historyRequest("GET", o)
		if err != nil {
			return err
		}
		request.Param("from", from)
		if to != "" {
			request.Param("to", to)
		}
		answer, err := do(ctx, request)
		if err != nil {
			return err
		}
		if printed, err := p.printAs(output, "text", answer); printed {
			return err
		}
		var difference struct{ Changes []change }
		if err := json.Unmarshal(answer, &difference); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		if len(difference.Changes) == 0 {
			fmt.Fprintln(p.ErrOut, "Nothing changed.")
		}
		for _, c := range difference.Changes {
			fmt.Fprintln(p.Out, printable(c.String()))
		}
		return nil
	})
	cmd.Flags().StringVar(&from, "from", "", "the first moment: "+pointUsage)
	cmd.Flags().StringVar(&to, "to", "", "the second moment; the default is now")
	outputFlag(cmd.Flags(), &output, "text")
	return cmd
}

func (p *plugin) newGet() *cobra.Command {
	var at, output string
	cmd := p.historyVerb(&cobra.Command{
		Use:   "get KIND/NAME --at=POINT",
		Short: "Print an object as it was",
		Long:  "Prints an object as it was at a revision or a time. Without --at it prints the object as it is.",
		Example: `  ` + p.called() + ` get widget/x --at=41
  ` + p.called() + ` get widget/x --at=-10m -o json`,
	}, func(ctx context.Context, o object) error {
		var answer []byte
		var err error
		if at == "" {
			answer, err = p.server.get(ctx, o)
		} else {
			var request *rest.Request
			if request, err = p.historyRequest("GET", o); err == nil {
				answer, err = do(ctx, request.Param("at", at))
			}
		}
		if err != nil {
			return err
		}
		_, err = p.printAs(output, "yaml", answer)
		return err
	})
	cmd.Flags().StringVar(&at, "at", "", "the moment: "+pointUsage)
	outputFlag(cmd.Flags(), &output, "yaml")
	return cmd
}

// changeFlags are the flags of verbs that write an old state.
type changeFlags struct{ dryRun, output string }

func (f *changeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.dryRun, "dry-run", "none", "none, or server, with which the server handles the request and stores nothing")
	outputFlag(flags, &f.output, "name")
}

// changeTo sends an order to the history of an object, and prints the result.
func (p *plugin) changeTo(ctx context.Context, o object, order map[string]any, f changeFlags, done string) error {
	switch f.dryRun {
	case "none":
	case "server":
		order["dryRun"], done = true, done+" (server dry run)"
	default:
		return misuse("--dry-run %q: use none or server", f.dryRun)
	}
	if f.output != "name" && f.output != "json" && f.output != "yaml" {
		return misuse("--output %q: use name, json or yaml", f.output)
	}
	request, err := p.historyRequest("POST", o)
	if err != nil {
		return err
	}
	body, err := json.Marshal(order)
	if err != nil {
		return err
	}
	answer, err := do(ctx, request.SetHeader("Content-Type", "application/json").Body(body))
	if err != nil {
		return err
	}
	if printed, err := p.printAs(f.output, "name", answer); printed {
		return err
	}
	_, err = fmt.Fprintf(p.Out, "%s %s\n", o, done)
	return err
}

func (p *plugin) newUndo() *cobra.Command {
	var revision string
	var given changeFlags
	cmd := p.historyVerb(&cobra.Command{
		Use:   "undo KIND/NAME [--revision=REVISION]",
		Short: "Set back what a revision of an object changed",
		Long: `Sets back the fields that a revision changed, by default the newest one. This is a new write, with admission and
validation. Other fields stay. If a later revision has changed the same fields, the server refuses it and names them.`,
		Example: `  ` + p.called() + ` undo widget/x
  ` + p.called() + ` undo widget/x --revision=41 --dry-run=server -o yaml`,
	}, func(ctx context.Context, o object) error {
		if revision == "" {
			request, err := p.historyRequest("GET", o)
			if err != nil {
				return err
			}
			answer, err := do(ctx, request.Param("limit", "1"))
			if err != nil {
				return err
			}
			var page pastPage
			if err := json.Unmarshal(answer, &page); err != nil {
				return fmt.Errorf("read the newest revision: %w", err)
			}
			if len(page.Items) == 0 {
				return fmt.Errorf("the server keeps no revision of %s", o)
			}
			revision = page.Items[0].Revision
		}
		return p.changeTo(ctx, o, map[string]any{"undo": revision}, given, "revision "+revision+" undone")
	})
	cmd.Flags().StringVar(&revision, "revision", "", "the revision to undo; the default is the newest one")
	given.add(cmd.Flags())
	return cmd
}

func (p *plugin) newRestore() *cobra.Command {
	var at string
	var given changeFlags
	cmd := p.historyVerb(&cobra.Command{
		Use:   "restore KIND/NAME --at=POINT",
		Short: "Make an object as it was, also a deleted one",
		Long: `Makes an object as it was at a revision or a time, by a new write with admission and validation. A deleted object is
created again, with a new UID; the revision of its deletion stands for the object before it.`,
		Example: `  ` + p.called() + ` restore widget/x --at=41
  ` + p.called() + ` restore widget/x --at=-1h --dry-run=server -o yaml`,
	}, func(ctx context.Context, o object) error {
		if at == "" {
			return misuse("--at is missing: %s", pointUsage)
		}
		return p.changeTo(ctx, o, map[string]any{"restore": at}, given, "restored")
	})
	cmd.Flags().StringVar(&at, "at", "", "the moment: "+pointUsage)
	given.add(cmd.Flags())
	return cmd
}

func (p *plugin) newDeleted() *cobra.Command {
	var all bool
	var limit int
	var before, output string
	cmd := &cobra.Command{
		Use:   "deleted KIND",
		Short: "List the deleted objects of a kind that can be restored",
		Long:  "Lists the objects of a kind that were deleted within the history that the server keeps, the newest deletion first.",
		Example: `  ` + p.called() + ` deleted widgets
  ` + p.called() + ` restore widget/x --at=57`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeObjects(readable),
		RunE: func(cmd *cobra.Command, words []string) error {
			r, err := p.find(words[0], "list", readable)
			if err != nil {
				return err
			}
			o := object{resource: r}
			if r.namespaced && !all {
				if o.namespace, _, err = p.config.ToRawKubeConfigLoader().Namespace(); err != nil {
					return err
				}
			}
			request, err := p.historyRequest("GET", o)
			if err != nil {
				return err
			}
			request.Param("deleted", "true").Param("limit", strconv.Itoa(limit))
			if before != "" {
				request.Param("before", before)
			}
			answer, err := do(cmd.Context(), request)
			if err != nil {
				return err
			}
			if printed, err := p.printAs(output, "table", answer); printed {
				return err
			}
			return p.printDeleted(answer, r.namespaced)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	cmd.Flags().IntVar(&limit, "limit", 50, "largest number of objects")
	cmd.Flags().StringVar(&before, "before", "", "list the deletions before this revision")
	outputFlag(cmd.Flags(), &output, "table")
	return cmd
}

func (p *plugin) printDeleted(answer []byte, namespaced bool) error {
	var page struct {
		Items  []struct{ Name, Namespace, UID, Revision, Time, User string }
		Since  struct{ Revision, Time string }
		Before string
	}
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	table := printers.GetNewTabWriter(p.Out)
	if len(page.Items) > 0 {
		fmt.Fprintln(table, "NAMESPACE\tNAME\tREVISION\tTIME\tUSER")
	}
	for _, d := range page.Items {
		if !namespaced {
			d.Namespace = ""
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", orDash(d.Namespace), printable(d.Name), d.Revision, seconds(d.Time), orDash(d.User))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	switch {
	case page.Before != "":
		fmt.Fprintf(p.ErrOut, "There are more: --before=%s lists them.\n", page.Before)
	case len(page.Items) == 0:
		fmt.Fprintf(p.ErrOut, "Nothing was deleted since revision %s%s.\n", page.Since.Revision, comma(seconds(page.Since.Time)))
	}
	return nil
}
