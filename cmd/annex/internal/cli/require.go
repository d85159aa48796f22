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
		Short: "Add Annex to an existing Go module",
		Long: `Adds a requirement of Annex to the Go module of the current folder, such as a kubebuilder
project, so that the module can use code of annex generate.

Until Annex has a release, the verb adds a replace directive for the checkout from which this
tool was built; set --replace or the environment variable ANNEX_CHECKOUT for another checkout.
The path is relative if the checkout is beside the module, so that it also works on other
machines. Then the go command adds the requirements of Annex.`,
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
		StringVar(&o.Replace, "replace", "", "folder of a checkout of Annex for the replace directive in go.mod (default: the checkout "+
			"from which this tool was built)")
	s.flags(cmd)
	return cmd
}
