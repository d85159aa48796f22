package cli

import (
	"context"
	"strings"

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
		newCreateAdmission(module),
		newCreateController(module),
		newCreatePlugin(module),
		newCreateSubresource(module),
		newCreateVersion(module),
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
	cmd.Flags().StringVar(&o.Group, "group", "", "API group: its name before the domain; the whole name if there is a dot in it")
	cmd.Flags().StringVar(&o.Version, "version", "", "API version, such as v1alpha1")
	cmd.Flags().StringVar(&o.Kind, "kind", "", "the kind, a Go type such as Cat")
	cmd.Flags().StringVar(&o.Resource, "resource", "", "lower-case plural name (default: that of the kind, such as cats)")
	cmd.Flags().BoolVar(&namespaced, "namespaced", true, "whether objects are in namespaces; false: they are outside of them")
	s.flags(cmd)
	return cmd
}

func newCreateVersion(module Module) *cobra.Command {
	var o scaffold.VersionOptions
	s := scaffolding{verb: "create version", module: module}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Add a version to a kind",
		Long: `Adds a version to a kind: a copy of the types of its hub, the version that the
others convert to. The conversions are generated. What cannot be is written as functions
that do not compile until you fill them in: what a version means, no tool can
know.

With --hub the new version becomes the hub, which the old one and the others convert to.
The function that validates goes with it, and so do the hooks beside the definition of
the server; what else speaks of the old hub is named. Objects stay readable in the
version that they were stored in.`,
		Example: `  annex create version --kind Cat --version v1beta1
  annex create version --group animal --kind Cat --version v1 --hub`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Version(o)
			})
		},
	}
	kindFlags(cmd, &o.Group, &o.Kind)
	cmd.Flags().StringVar(&o.Version, "version", "", "the new API version, such as v1")
	cmd.Flags().BoolVar(&o.Hub, "hub", false, "make it the version that the others convert to")
	s.flags(cmd)
	return cmd
}

// kindFlags adds the flags for an existing kind.
func kindFlags(cmd *cobra.Command, group, kind *string) {
	cmd.Flags().StringVar(group, "group", "", "API group of the kind (default: the only one that has it)")
	cmd.Flags().StringVar(kind, "kind", "", "the kind, such as Cat")
}

func newCreateAdmission(module Module) *cobra.Command {
	return hookCommand(module, func(_ context.Context, o scaffold.HookOptions) (*scaffold.Result, error) {
		return scaffold.Admission(o)
	}, &cobra.Command{
		Use:   "admission",
		Short: "Add a hook that decides on writes of a kind",
		Long: `Adds an admission hook to a kind, which decides whether an object may be written:
a function of the kind's Go type beside the definition of the server, where it is
registered, and a test of it.`,
		Example: `  annex create admission --kind Cat`,
	})
}

func newCreateController(module Module) *cobra.Command {
	return hookCommand(module, scaffold.Controller, &cobra.Command{
		Use:   "controller",
		Short: "Add a controller of a kind",
		Long: `Adds a controller of a kind beside the definition of the server, where it is
registered, and a test of it. It is made with controller-runtime, which the go command
adds to the module if it is not there. It runs inside the server, or in a process of its
own with the server's verb controllers.`,
		Example: `  annex create controller --kind Cat`,
	})
}

// hookCommand completes a verb that adds something to a kind and needs only the kind.
func hookCommand(
	module Module,
	work func(context.Context, scaffold.HookOptions) (*scaffold.Result, error),
	cmd *cobra.Command,
) *cobra.Command {
	var o scaffold.HookOptions
	s := scaffolding{verb: "create " + cmd.Use, module: module}
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
			o.Options = common
			return work(cmd.Context(), o)
		})
	}
	kindFlags(cmd, &o.Group, &o.Kind)
	s.flags(cmd)
	return cmd
}

func newCreateSubresource(module Module) *cobra.Command {
	var o scaffold.SubresourceOptions
	s := scaffolding{verb: "create subresource", module: module}
	cmd := &cobra.Command{
		Use:   "subresource",
		Short: "Add a subresource to a kind",
		Long: `Adds a subresource that takes requests to a kind, such as cats/feed: the type of a
request in the package of the hub, the function that answers it beside the definition
of the server, where it is registered, and a test that calls it through the API.

With --form it is one as pods have them: logs, exec, attach, portforward or proxy, by
that name unless --name says another. Its function is added and registered, and says
or does hardly anything yet; those of the first three have a test.`,
		Example: `  annex create subresource --kind Cat --name feed
  annex create subresource --kind Cat --form logs`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Subresource(o)
			})
		},
	}
	kindFlags(cmd, &o.Group, &o.Kind)
	cmd.Flags().StringVar(&o.Name, "name", "", "name of the subresource, such as feed: lower-case letters and digits (default: the form, "+
		"if that is not action)")
	cmd.Flags().StringVar(&o.Form, "form", "action", "what it does: "+strings.Join(scaffold.Forms(), ", "))
	s.flags(cmd)
	return cmd
}

func newCreatePlugin(module Module) *cobra.Command {
	var o scaffold.PluginOptions
	s := scaffolding{verb: "create plugin", module: module}
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Add a kubectl plugin for the server",
		Long: `Adds a kubectl plugin by a name of its own, such as kubectl zoo: a program of a few lines
in cmd/kubectl-NAME. It is kubectl annex for the server's groups: actions, views, logs, exec and the others
of its kinds. Groups below the project's domain are the plugin's, those to come included. The go command adds the
module that it is made with, which brings kubectl's libraries along.`,
		Example: `  annex create plugin --name zoo`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Plugin(cmd.Context(), o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "what follows kubectl: lower-case letters and digits (default: the server's name)")
	s.flags(cmd)
	return cmd
}
