package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/internal/program/maintenance"
)

func (v *storageVerbs) rewrite() *cobra.Command {
	var resources []string
	var compact bool
	var output string
	cmd := &cobra.Command{
		Use:   "rewrite",
		Short: "Rewrite objects with the current key, version and media type",
		Long: `Rewrite all objects that are not stored with the current key, version and media type: the
first key of the encryption configuration, and the stored version and media type of the
kind. A rewritten object only gets a new resource version; watches receive it as modified.
The verb does not write objects that are already current.

A running server keeps serving. If you interrupt the verb, run it again to rewrite the
remaining objects. The exit code is 1 if the verb could not read or write some objects, or
if some objects are still not stored with the current key, version and media type.

The history keeps replaced and deleted objects in their old form until it is compacted:
--compact compacts it at once.`,
		Example: fmt.Sprintf(`  # after you added a new first key to the encryption configuration
  %[1]s storage rewrite --compact

  # one kind of a remote server
  %[1]s storage rewrite --resource flunders.wardle.example.com --kubeconfig admin.kubeconfig`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			p, err := v.plan()
			if err != nil {
				return err
			}
			for i, name := range resources {
				r, err := resourceOf(p, name)
				if err != nil && p.Definition.Plane == nil {
					return err
				}
				if err == nil { // otherwise it may be a custom resource
					resources[i] = r.String()
				}
			}
			return v.use(cmd, p, func(ctx context.Context, tools maintenance.Tools) error {
				out := cmd.OutOrStdout()
				all := []maintenance.Rewritten{}
				shown := &line{out: cmd.ErrOrStderr()}
				err := tools.Rewrite(ctx, resources, func(r maintenance.Rewritten) {
					if r.Unfinished {
						shown.show(fmt.Sprintf("%s: %d checked, %d rewritten", r.Resource, r.LookedAt, r.Written))
						return
					}
					shown.clear()
					if all = append(all, r); output == "" {
						printRewritten(out, r)
					}
				})
				shown.clear()
				if errors.Is(err, maintenance.ErrUnreadable) {
					return usage(err)
				}
				if output == "json" {
					err = errors.Join(err, printJSON(out, all))
				}
				if err != nil {
					return err
				}
				if err := complete(all); err != nil || !compact {
					return err
				}
				done, err := tools.Compact(ctx, 0)
				if err != nil {
					return fmt.Errorf("all objects are rewritten, but the history is not compacted: %w", err)
				}
				for _, c := range done {
					if output == "" {
						fmt.Fprintf(out, "%s: compacted to revision %d\n", c.Storage, c.Revision)
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringSliceVar(&resources, "resource", nil, "only objects of these resources, such as flunders.wardle.example.com")
	cmd.Flags().BoolVar(&compact, "compact", false, "then compact the history, which has objects in their old form")
	outputFlag(cmd, &output)
	return cmd
}

// printRewritten prints one line for a resource, and one line for each failure.
func printRewritten(out io.Writer, r maintenance.Rewritten) {
	fmt.Fprintf(out, "%s: %d checked, %d rewritten, %d already current", r.Resource, r.LookedAt, r.Written, r.Current)
	if r.Gone > 0 {
		fmt.Fprintf(out, ", %d deleted meanwhile", r.Gone)
	}
	if r.Failed > 0 {
		fmt.Fprintf(out, ", %d failed", r.Failed)
	}
	var keys []string
	for _, k := range r.Keys {
		keys = append(keys, fmt.Sprintf("%d with %s", k.Objects, strings.TrimSpace(k.Provider+" "+k.Name)))
	}
	if len(keys) > 0 {
		fmt.Fprintf(out, "; stored now: %s", strings.Join(keys, ", "))
	}
	for i, c := range r.StoredAs {
		separator := "; as "
		if i > 0 {
			separator = ", "
		}
		fmt.Fprintf(out, "%s%d %s", separator, c.Objects, c)
	}
	fmt.Fprintln(out)
	for _, f := range r.Failures {
		fmt.Fprintf(out, "  %s: %s\n", f.Key, f.Error)
	}
	if more := r.Failed - len(r.Failures); more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
}

// complete returns nil if all objects are stored in their current form.
func complete(all []maintenance.Rewritten) error {
	failed, old, forms := 0, 0, int64(0)
	for _, r := range all {
		failed += r.Failed
		old += r.Old()
		forms += r.OldForms()
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d objects could not be rewritten: keep the old keys and versions until these objects are rewritten "+
			"or deleted", failed)
	case old > 0:
		return fmt.Errorf("other replicas wrote %d objects with another key: use the same encryption configuration on all replicas, and run "+
			"storage rewrite again", old)
	case forms > 0:
		return fmt.Errorf("other replicas wrote %d objects in another version or media type: run the same program with the same "+
			"flags on all replicas, and run storage rewrite again", forms)
	}
	return nil
}
