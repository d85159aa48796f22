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
		Short: "Store objects anew: with the current key, version and media type",
		Long: `Store every object anew that is not stored as it would be if it were written now:
encrypted with the first key of the encryption configuration, in the kind's stored
version and media type. Nothing else about it changes but its resource version; watches
see it as modified. Objects that are stored so already are left alone.

A server that runs goes on meanwhile. It can be interrupted and run again, which
does the rest. The exit code is 1 if objects could not be read or written, or if some
are not stored with the current key, version and media type afterwards.

Objects that were replaced or deleted stay in the history as they were stored, until
that is compacted: --compact does so at once.`,
		Example: fmt.Sprintf(`  # after a new key has been put first in the encryption configuration
  %[1]s storage rewrite --compact

  # one kind, of a server elsewhere
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
				if err == nil { // else it may be a custom resource
					resources[i] = r.String()
				}
			}
			return v.use(cmd, p, func(ctx context.Context, tools maintenance.Tools) error {
				out := cmd.OutOrStdout()
				all := []maintenance.Rewritten{}
				shown := &line{out: cmd.ErrOrStderr()}
				err := tools.Rewrite(ctx, resources, func(r maintenance.Rewritten) {
					if r.Unfinished {
						shown.show(fmt.Sprintf("%s: %d looked at, %d rewritten", r.Resource, r.LookedAt, r.Written))
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
					return fmt.Errorf("everything is rewritten, but not compacted: %w", err)
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
	cmd.Flags().BoolVar(&compact, "compact", false, "forget the history afterwards, in which objects are as they were stored before")
	outputFlag(cmd, &output)
	return cmd
}

// printRewritten prints one line for a resource, and one for each failure.
func printRewritten(out io.Writer, r maintenance.Rewritten) {
	fmt.Fprintf(out, "%s: %d looked at, %d rewritten, %d already current", r.Resource, r.LookedAt, r.Written, r.Current)
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

// complete is nil if everything is stored as it should be.
func complete(all []maintenance.Rewritten) error {
	failed, old, forms := 0, 0, int64(0)
	for _, r := range all {
		failed += r.Failed
		old += r.Old()
		forms += r.OldForms()
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d objects could not be rewritten: keep the old keys and versions until they are, or are deleted", failed)
	case old > 0:
		return fmt.Errorf("%d objects were written with another key meanwhile: give all replicas the same encryption configuration and run "+
			"it again", old)
	case forms > 0:
		return fmt.Errorf("%d objects were written in another version or media type meanwhile: have all replicas run the same program with "+
			"the same flags and run it again", forms)
	}
	return nil
}
