package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/store/memory"
)

// description is describe's output for one kind.
type description struct {
	Kind             string   `json:"kind"`
	Group            string   `json:"group"`
	Resource         string   `json:"resource"`
	ShortNames       []string `json:"shortNames,omitempty"`
	Namespaced       bool     `json:"namespaced"`
	Versions         []string `json:"versions"`
	Hub              string   `json:"hub"`
	StoredAs         string   `json:"storedAs,omitempty"`
	MediaType        string   `json:"mediaType,omitempty"`
	MediaTypeFrom    *source  `json:"mediaTypeFrom,omitempty"`
	History          string   `json:"history,omitempty"`
	StoredIn         string   `json:"storedIn,omitempty"`
	StoredInFrom     *source  `json:"storedInFrom,omitempty"`
	EncryptedWith    string   `json:"encryptedWith,omitempty"`
	StoredUnder      string   `json:"storedUnder,omitempty"`
	AlsoServedAs     []string `json:"alsoServedAs,omitempty"`
	SharesObjectsOf  string   `json:"sharesObjectsOf,omitempty"`
	Source           string   `json:"source,omitempty"`
	Verbs            []string `json:"verbs"`
	Subresources     []string `json:"subresources,omitempty"`
	Custom           []custom `json:"customSubresources,omitempty"`
	Columns          []string `json:"columns,omitempty"`
	SelectableFields []string `json:"selectableFields,omitempty"`
	QueryFields      []string `json:"queryFields,omitempty"`
	IndexedFields    []string `json:"indexedFields,omitempty"`
	IndexedLabels    []string `json:"indexedLabels,omitempty"`
	GracePeriod      string   `json:"gracePeriod,omitempty"`
	Hooks            []string `json:"hooks,omitempty"`
	Roles            []grant  `json:"roles,omitempty"`
}

// grant lists the verbs that a role permits on a kind.
type grant struct {
	Role        string   `json:"role"`
	Subresource string   `json:"subresource,omitempty"`
	Verbs       []string `json:"verbs"`
}

func (g grant) String() string {
	if g.Subresource == "" {
		return g.Role + ": " + strings.Join(g.Verbs, ", ")
	}
	return g.Role + ": " + strings.Join(g.Verbs, ", ") + " of " + g.Subresource
}

// source is the origin of a setting: the library's default, the server's developer, or its operator.
type source plan.Source

func sourceOf(s plan.Source) *source {
	s.Setting = flagNames(s.Setting)
	return (*source)(&s)
}

// of returns a setting with its source, for display.
func (s *source) of(setting string) string {
	switch {
	case s == nil:
		return setting
	case s.Setting == "":
		return fmt.Sprintf("%s (%s)", setting, s.Level)
	}
	return fmt.Sprintf("%s (%s: %s)", setting, s.Level, s.Setting)
}

// wholeDescription is the output of describe -o json.
type wholeDescription struct {
	Name        string        `json:"name"`
	Kinds       []description `json:"kinds"`
	Controllers []string      `json:"controllers,omitempty"`
	// AdmissionPlugins are the declared plugins that are enabled, in order.
	AdmissionPlugins []string `json:"admissionPlugins,omitempty"`
	// Handlers are the paths of handlers outside the API.
	Handlers []string `json:"handlers,omitempty"`
	// Filters are the steps of a request before its handler, in their order, with the conditions for which a server has them.
	Filters []string `json:"filters"`
	// Console and SwaggerUI are the web pages.
	Console   page `json:"console"`
	SwaggerUI page `json:"swaggerUI"`
	// Memory bounds the caches and the memory of requests.
	Memory memoryDescription `json:"memory"`
	// Login describes how users sign in; nil if they cannot.
	Login *loginDescription `json:"login,omitempty"`
	// Queries is the path prefix of the query API; empty if it is not served.
	Queries     string      `json:"queries,omitempty"`
	QueriesFrom *source     `json:"queriesFrom,omitempty"`
	Aggregated  *aggregated `json:"aggregated,omitempty"`
}

// custom is a custom subresource.
type custom struct {
	Name  string   `json:"name"`
	Verbs []string `json:"verbs"`
	// Request is the request kind of an action; Answer is the response kind of an action or a view. Methods are the
	// HTTP methods of a connect subresource. Options is the options kind of a connect subresource or a view.
	Request string `json:"request,omitempty"`
	Answer  string `json:"answer,omitempty"`
	// Result is the Go type that an operation's action returns.
	Result  string   `json:"result,omitempty"`
	Methods []string `json:"methods,omitempty"`
	Options string   `json:"options,omitempty"`
}

func describeCustom(s *define.Subresource) custom {
	c := custom{Name: s.Name, Verbs: s.Verbs(), Methods: s.Methods}
	switch {
	case s.ReadsQuery():
		c.Options = s.Object.Name()
	case s.Object != nil:
		c.Request = s.Object.Name()
	}
	if s.Answer != nil {
		c.Answer = s.Answer.Name()
	}
	if s.Long != nil {
		c.Result = s.Long.Result.Name()
	}
	return c
}

func (c custom) String() string {
	text := c.Name + ": "
	switch {
	case len(c.Methods) > 0:
		text += "connects " + strings.Join(c.Methods, ", ")
	case c.Request != "":
		text += strings.Join(c.Verbs, " or ") + " " + c.Request
	default:
		text += strings.Join(c.Verbs, " or ")
	}
	if c.Options != "" {
		text += ", options " + c.Options
	}
	if c.Answer != "" {
		text += ", answers " + c.Answer
	}
	if c.Result != "" {
		text += ", result " + c.Result
	}
	return text
}

func describeCommand(program Program) *cobra.Command {
	var output, configFile string
	options, storage, addresses, memory := config.Options{}, storageOptions{}, addressOptions{}, memoryFlags{}
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Print the features of each kind, and the controllers",
		Long: `Print the name, versions and verbs of each kind, and how a server with the same flags or
the same configuration file stores its objects. The controllers follow, and with --aggregated
the permissions that the server needs in its cluster.`,
		Example: fmt.Sprintf(`  %[1]s describe
  %[1]s describe --config /etc/%[1]s.yaml
  %[1]s describe --output json | jq '.kinds[].resource'`, program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if err := readConfig(cmd.Flags(), serveCommand(program).Flags(), configFile); err != nil {
				return err
			}
			if err := memory.complete(cmd.Flags(), &options); err != nil {
				return err
			}
			compiled, err := program.Define()
			if err != nil {
				return err
			}
			definition := compiled.Server
			if err := clusterOptions(cmd.Flags(), &options, definition); err != nil {
				return err
			}
			if err := addresses.complete(&options); err != nil {
				return usage(err)
			}
			encryptedWith, err := serve.EncryptionOf(options.EncryptionConfigFile)
			if err != nil {
				return usage(err)
			}
			p, err := storage.resolve(compiled, options)
			if err != nil {
				return err
			}
			var all []description
			for _, k := range definition.Kinds() {
				d := describe(k)
				if r := p.Resource(k.Primary().GroupResource()); r != nil {
					d.MediaType, d.MediaTypeFrom = r.MediaType, sourceOf(r.MediaTypeFrom)
					d.StoredIn, d.StoredInFrom = r.Storage.Name(), sourceOf(r.StorageFrom)
					d.History = historyText(p.Retention(k.Primary().GroupResource()))
					d.EncryptedWith = encryptedWith(k.Primary().GroupResource())
				}
				all = append(all, d)
			}
			if err := describeOwn(cmd.Context(), compiled, all); err != nil {
				return err
			}
			whole := wholeDescription{Name: program.Name, Kinds: all}
			for _, c := range definition.Controllers {
				whole.Controllers = append(whole.Controllers, c.Name)
			}
			for _, plugin := range p.AdmissionPlugins {
				whole.AdmissionPlugins = append(whole.AdmissionPlugins, plugin.Name)
			}
			for _, h := range definition.Handlers {
				whole.Handlers = append(whole.Handlers, h.Path)
			}
			whole.Filters = upstream.Filters()
			whole.Queries, whole.QueriesFrom = p.QueryPrefix, sourceOf(p.QueryPrefixFrom)
			whole.Console, whole.SwaggerUI = describePage(p.Console), describePage(p.SwaggerUI)
			whole.Memory = describeMemory(p.Options)
			whole.Login, whole.Aggregated = describeLogin(p), describeAggregated(p)
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), whole)
			}
			return whole.print(cmd.OutOrStdout())
		},
	}
	outputFlag(cmd, &output)
	storageFlags(cmd.Flags(), &storage, &options)
	addresses.declare(cmd.Flags())
	memory.declare(cmd.Flags())
	consoleFlags(cmd.Flags(), &options)
	admissionFlags(cmd.Flags(), &options.Admission)
	requestHeaderFlags(cmd.Flags(), &options.RequestHeader)
	fairnessFlag(cmd.Flags(), &options.PriorityAndFairness)
	loginFlags(cmd.Flags(), &options.Login)
	queryFlag(cmd.Flags(), &options.QueryPrefix)
	historyFlags(cmd.Flags(), &options)
	clusterFlags(cmd.Flags(), &options)
	configFileFlag(cmd.Flags(), &configFile)
	return cmd
}

func (d wholeDescription) print(out io.Writer) error {
	err := printDescriptions(out, d.Kinds)
	for _, part := range []struct {
		title string
		names []string
	}{{"Controllers", d.Controllers}, {"Admission plugins", d.AdmissionPlugins}, {"Paths beside the API", d.Handlers}} {
		if err == nil && len(part.names) > 0 {
			_, err = fmt.Fprintf(out, "\n%s: %s\n", part.title, strings.Join(part.names, ", "))
		}
	}
	if err == nil {
		queries := d.Queries
		if queries == "" {
			queries = "none"
		}
		_, err = fmt.Fprintf(
			out,
			"\nQueries: %s\nConsole: %s\nSwagger UI: %s\nMemory: %s\n",
			d.QueriesFrom.of(queries),
			d.Console,
			d.SwaggerUI,
			d.Memory,
		)
	}
	if err == nil {
		_, err = fmt.Fprintf(out, "Filters: %s\n", strings.Join(d.Filters, ", "))
	}
	if err == nil && d.Login != nil {
		_, err = fmt.Fprintf(
			out,
			"\nUsers sign in at /oauth/, by %s: tokens expire after %s, sessions after %s, or after %s without use\n",
			d.Login.UserFile,
			d.Login.TokenLifetime,
			d.Login.SessionLifetime,
			d.Login.IdleTimeout,
		)
	}
	if err == nil && d.Aggregated != nil {
		err = d.Aggregated.print(out)
	}
	return err
}

func describe(k *define.Kind) description {
	d := description{
		Kind:         k.Name,
		Group:        k.Group,
		Resource:     k.Resource,
		ShortNames:   k.ShortNames,
		Namespaced:   !k.ClusterScoped,
		Hub:          k.Hub().GroupVersion.Version,
		Verbs:        k.Verbs(),
		Subresources: k.Subresources(),
		Hooks:        k.Hooks(),
	}
	switch primary := k.Primary(); {
	case primary.CustomStorage != nil:
		d.Source = "a storage of its own"
	case primary.Source != nil:
		d.Source = "virtual" + following(primary.Source)
	default:
		d.StoredAs = primary.StoredAs
	}
	if k.AliasOf != nil {
		d.Hub = k.Hub().GroupVersion.String()
		d.SharesObjectsOf = k.Primary().GroupResource().String()
		if d.StoredAs != "" {
			d.StoredAs = k.Stored().GroupVersion.String()
		}
	}
	if under := k.Primary().StoredUnder; under != k.GroupResource() && d.StoredAs != "" {
		d.StoredUnder = under.String()
	}
	for _, also := range k.Aliases {
		d.AlsoServedAs = append(d.AlsoServedAs, also.GroupResource().String())
	}
	for _, v := range k.Versions {
		name := v.GroupVersion.Version
		switch {
		case v.Unserved:
			name += " (unserved)"
		case v.Deprecated != "":
			name += " (deprecated)"
		}
		d.Versions = append(d.Versions, name)
	}
	for _, s := range k.CustomSubresources {
		d.Custom = append(d.Custom, describeCustom(s))
	}
	if marked := k.Hub().Structural; marked != nil {
		for _, c := range marked.Columns() {
			d.Columns = append(d.Columns, c.Name)
		}
	}
	for _, c := range k.Columns {
		d.Columns = append(d.Columns, c.Name)
	}
	for _, f := range k.Selectable {
		d.SelectableFields = append(d.SelectableFields, f.Path)
	}
	for _, f := range k.Primary().QueryFields {
		d.QueryFields = append(d.QueryFields, describeField(f))
	}
	for _, g := range k.Granted() {
		d.Roles = append(d.Roles, grant(g))
	}
	d.IndexedFields, d.IndexedLabels = k.IndexFields, k.IndexLabels
	if k.Grace != nil {
		d.GracePeriod = k.Grace.Period.String()
		if k.Grace.Of != nil {
			d.GracePeriod = "by object"
		}
		if k.Grace.DeleteAfterPeriod {
			d.GracePeriod += ", then deleted by the server"
		}
	}
	return d
}

// describeField lists the query capabilities of a field.
func describeField(f ordered.Field) string {
	text := f.Name + " (" + f.Type
	if f.Sortable {
		text += ", sortable"
	}
	if f.Text {
		text += ", text"
	}
	return text + ")"
}

func following(s *define.Source) string {
	switch {
	case s.Changes != nil && s.Poll > 0:
		return fmt.Sprintf(", with a change feed and polled every %s", s.Poll)
	case s.Changes != nil:
		return ", with a change feed"
	case s.Poll > 0:
		return fmt.Sprintf(", polled every %s", s.Poll)
	}
	return ""
}

// describeOwn completes the descriptions of kinds with storages of their own. Only an open storage knows its verbs,
// so describeOwn opens a server and closes it again.
func describeOwn(ctx context.Context, definition *definition.Definition, all []description) (err error) {
	kinds := definition.Server.Kinds()
	if !slices.ContainsFunc(kinds, func(k *define.Kind) bool { return k.CustomStorage != nil }) {
		return nil
	}
	p, err := plan.Everything(definition.Server, config.Options{Storage: memory.Storage()})
	if err != nil {
		return usage(err)
	}
	instance, err := serve.New(ctx, p, definition.NewEnv)
	if err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	for i, k := range kinds {
		if k.CustomStorage != nil {
			all[i].Verbs, all[i].Subresources = instance.Served(k.GroupResource())
		}
	}
	return nil
}

func printDescriptions(out io.Writer, all []description) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, d := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		scope := "cluster-scoped"
		if d.Namespaced {
			scope = "namespaced"
		}
		fmt.Fprintf(w, "%s\n", d.Kind)
		lines := [][2]string{
			{"resource", schema.GroupResource{Group: d.Group, Resource: d.Resource}.String() + ", " + scope},
			{"also served as", strings.Join(d.AlsoServedAs, ", ")},
			{"shares objects of", d.SharesObjectsOf},
			{"short names", strings.Join(d.ShortNames, ", ")},
			{"versions", strings.Join(d.Versions, ", ") + "; hub " + d.Hub},
			{"stored as", d.StoredAs},
			{"media type", d.MediaTypeFrom.of(d.MediaType)},
			{"history", d.History},
			{"stored in", d.StoredInFrom.of(d.StoredIn)},
			{"encrypted with", d.EncryptedWith},
			{"stored under", d.StoredUnder},
			{"source", d.Source},
			{"verbs", strings.Join(d.Verbs, ", ")},
			{"subresources", strings.Join(d.Subresources, ", ")},
		}
		for i, c := range d.Custom {
			lines = append(lines, [2]string{[]string{"custom subresources", ""}[min(i, 1)], c.String()})
		}
		lines = append(lines, [][2]string{
			{"columns", strings.Join(d.Columns, ", ")},
			{"selectable fields", strings.Join(d.SelectableFields, ", ")},
			{"query fields", strings.Join(d.QueryFields, ", ")},
			{"indexed fields", strings.Join(d.IndexedFields, ", ")},
			{"indexed labels", strings.Join(d.IndexedLabels, ", ")},
			{"grace period", d.GracePeriod},
			{"hooks", strings.Join(d.Hooks, ", ")},
		}...)
		for i, g := range d.Roles {
			lines = append(lines, [2]string{[]string{"roles", ""}[min(i, 1)], g.String()})
		}
		for _, line := range lines {
			if line[1] != "" {
				fmt.Fprintf(w, "  %s\t%s\n", line[0], line[1])
			}
		}
	}
	return w.Flush()
}

func versionCommand(program Program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version as served at /version: the release of Kubernetes whose API the server
implements, then the name and version of the program.`,
		Example: "  " + program.Name + " version",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return printVersion(program, cmd.OutOrStdout()) },
	}
}

func printVersion(program Program, out io.Writer) error {
	definition, err := program.server()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, upstream.EffectiveVersion(definition).Info().GitVersion)
	return err
}
