package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

func newCreate(module Module) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Add kinds, versions, hooks, controllers, subresources or a kubectl plugin to a project",
		Long: `Adds to the project of the current folder: a Go module with one annex.Server, as annex init
creates it. The verbs write new files, and add the new parts to the definition of the server.
They change nothing else.`,
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
		Long: `Adds a kind: one file with its types and its validation, one line in the definition of the
server, and a sample object in config/samples. Then it generates code, as annex generate does.

The project's domain is appended to --group, unless --group has a dot.`,
		Example: `  annex create api --group animal --version v1alpha1 --kind Cat
  annex create api --group animal --version v1alpha1 --kind Zoo --namespaced=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := strconv.ParseBool(o.Resource); err == nil && len(o.Resource) > 1 {
				return usageError{fmt.Errorf("--resource %s: the flag is the name of the resource, which is always served: leave it out",
					o.Resource)}
			}
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options, o.ClusterScoped = common, !namespaced
				return scaffold.API(o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Group, "group", "", "API group: its name before the domain, or the whole name if it has a dot")
	cmd.Flags().StringVar(&o.Version, "version", "", "API version, such as v1alpha1")
	cmd.Flags().StringVar(&o.Kind, "kind", "", "name of the kind, a Go type such as Cat")
	cmd.Flags().StringVar(&o.Resource, "resource", "", "name of the resource, in lower case and plural (default: the plural of the kind, "+
		"such as cats)")
	cmd.Flags().BoolVar(&namespaced, "namespaced", true, "make the kind namespaced; false makes it cluster-scoped")
	s.flags(cmd)
	return cmd
}

func newCreateVersion(module Module) *cobra.Command {
	var o scaffold.VersionOptions
	s := scaffolding{verb: "create version", module: module}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Add a version to a kind",
		Long: `Adds a version to a kind: a copy of the types of its hub, the version to which all other
versions convert. It generates the conversions. For fields that it cannot convert, it writes
functions that do not compile until you complete them.

With --hub the new version becomes the hub, and all other versions convert to it. The
validation function and the hooks beside the definition of the server move to the new hub; the
verb lists other code that still uses the old hub. The server can still read objects that are
stored in other versions.`,
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
	cmd.Flags().BoolVar(&o.Hub, "hub", false, "make the new version the hub, to which all other versions convert")
	s.flags(cmd)
	return cmd
}

// kindFlags adds the flags for an existing kind.
func kindFlags(cmd *cobra.Command, group, kind *string) {
	cmd.Flags().StringVar(group, "group", "", "API group of the kind (default: the only group with this kind)")
	cmd.Flags().StringVar(kind, "kind", "", "the kind, such as Cat")
}

func newCreateAdmission(module Module) *cobra.Command {
	return hookCommand(module, func(_ context.Context, o scaffold.HookOptions) (*scaffold.Result, error) {
		return scaffold.Admission(o)
	}, &cobra.Command{
		Use:   "admission",
		Short: "Add an admission hook to a kind",
		Long: `Adds an admission hook to a kind: a function that admits or rejects writes of objects. The verb
writes the function beside the definition of the server, registers it there, and adds a test.`,
		Example: `  annex create admission --kind Cat`,
	})
}

func newCreateController(module Module) *cobra.Command {
	return hookCommand(module, scaffold.Controller, &cobra.Command{
		Use:   "controller",
		Short: "Add a controller of a kind",
		Long: `Adds a controller of a kind: the verb writes the controller beside the definition of the server,
registers it there, and adds a test. The controller uses controller-runtime; the go command adds
this module if it is missing. The controller runs inside the server, or in a separate process with
the server's verb controllers.`,
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
		Long: `Adds a subresource with requests to a kind, such as cats/feed: a Go type for requests in the
package of the hub, a function that handles requests beside the definition of the server, where
the verb registers it, and a test that sends a request through the API.

With --form the subresource works like one of pods: logs, exec, attach, portforward or proxy. It
has that name unless you set --name. The verb writes and registers a minimal function for you to
complete, and adds a test for logs, exec and attach.`,
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
		"except for the form action)")
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
		Long: `Adds a kubectl plugin with its own name, such as kubectl zoo: a program of a few lines in
cmd/kubectl-NAME. The plugin works like kubectl annex, limited to the server's groups: it calls
actions, views, logs, exec and other subresources of their kinds. It covers all groups below the
project's domain, also groups that you add later. The go command adds the module of kubectl annex
and kubectl's libraries to go.mod.`,
		Example: `  annex create plugin --name zoo`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd, func(common scaffold.Options) (*scaffold.Result, error) {
				o.Options = common
				return scaffold.Plugin(cmd.Context(), o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "name of the plugin after kubectl: lower-case letters and digits (default: the server's name)")
	s.flags(cmd)
	return cmd
}
