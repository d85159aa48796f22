package cli

import (
	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

func newRequire(module Module) *cobra.Command {
	var o scaffold.RequireOptions
	s := scaffolding{verb: "require", module: module}
	cmd := &cobra.Command{
		Use:   "require",
		Short: "Have a Go module that is there require Annex",
		Long: `Has the module that the current folder is in require Annex, so that it can import
what annex generate writes: a project of kubebuilder's, say.

Until Annex has a release, go.mod gets a replace by the checkout that this tool was
built from; --replace, or the environment's ANNEX_CHECKOUT, names another. The path
is relative if the checkout is beside the module, and so it is for colleagues. Then
the go command adds what Annex requires in turn.`,
		Example: `  annex require
  annex require --replace ../annex`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Require(cmd.Context(), o)
			})
		},
	}
	cmd.Flags().
		StringVar(&o.Replace, "replace", "", "folder of a checkout of Annex that go.mod points to (default: the one this tool was built from)")
	s.flags(cmd)
	return cmd
}
