package cli

import (
	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

func newCreate(module Module) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Add a kind, or a part of one, to a project",
		Long: `Adds to the project that the current folder is in: the Go module with one
annex.Server in it, as annex init makes it. The definition of the server gains what
is new; nothing else that is there changes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	cmd.AddCommand(
		newCreateAPI(module),
	)
	return cmd
}

func newCreateAPI(module Module) *cobra.Command {
	var o scaffold.APIOptions
	namespaced := true
	s := scaffolding{verb: "create api", module: module}
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Add a kind",
		Long: `Adds a kind: one file with its types and its validation, one line in the
definition of the server, and an object to try it with in config/samples. Then the
generated file is written, as annex generate does.

The project's domain is put behind --group, unless there is a dot in it.`,
		Example: `  annex create api --group animal --version v1alpha1 --kind Cat
  annex create api --group animal --version v1alpha1 --kind Zoo --namespaced=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options, o.ClusterScoped = common, !namespaced
				return scaffold.API(o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Group, "group", "", "API group: its name before the domain, or the whole name")
	cmd.Flags().StringVar(&o.Version, "version", "", "API version, such as v1alpha1")
	cmd.Flags().StringVar(&o.Kind, "kind", "", "the kind, a Go type such as Cat")
	cmd.Flags().StringVar(&o.Resource, "resource", "", "lower-case plural name (default that of the kind, such as cats)")
	cmd.Flags().BoolVar(&namespaced, "namespaced", true, "whether objects are in namespaces")
	s.flags(cmd)
	return cmd
}
