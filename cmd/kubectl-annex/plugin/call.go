package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// callFlags are the flags of all actions and views.
type callFlags struct {
	file, dryRun string
	wait         bool
	timeout      time.Duration
	print        *genericclioptions.PrintFlags
}

func (f *callFlags) add(cmd *cobra.Command, action bool) {
	f.print = genericclioptions.NewPrintFlags("")
	f.print.AddFlags(cmd)
	if !action {
		return
	}
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "for actions: file with the body, as YAML or JSON; - is standard input. Field "+
		"flags override the file")
	cmd.Flags().StringVar(&f.dryRun, "dry-run", "none", "for actions: none, or server, with which the server handles the request and "+
		"stores nothing")
	cmd.Flags().BoolVar(&f.wait, "wait", true, "for actions that return an operation: wait for the end of the operation, and return its "+
		"result as exit code")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "time to wait for the end of an operation, which continues afterwards; 0 waits "+
		"without limit")
}

func (p *plugin) newCall() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "call ACTION KIND/NAME",
		Short: "Call an action or a view",
		Long: `Calls an action or a view of an object. You can omit the word call, unless a verb of the plugin or a kind has the
same name as the action or view.

The fields of an action are flags, and so are the options of a view: ACTION KIND --help lists them. Only fields that
are strings, numbers, booleans, or lists or maps of these are flags; use a file for other bodies. The verb prints the
answer in the format of --output.

A long-running action returns an operation. The verb shows its progress until it ends; the exit code is 0 if the
operation succeeded.`,
		Example: `  ` + p.called() + ` call approval jenkinsservices/x --decision=Approved
  ` + p.called() + ` approval jenkinsservices/x --decision=Approved
  ` + p.called() + ` jenkinsservices approval --help`,
		Args: func(_ *cobra.Command, words []string) error {
			if len(words) == 0 {
				return misuse("no action or no object: use call ACTION KIND/NAME")
			}
			return nil
		},
		// If the name of an action is given, a command for the action replaces this one.
		RunE: func(_ *cobra.Command, words []string) error { return p.unknownCall(words[0]) },
	}
	new(callFlags).add(cmd, true)
	return cmd
}

func (p *plugin) unknownCall(name string) error {
	all, err := p.server.resources()
	if err != nil {
		return err
	}
	return misuse("no kind has an action or a view %q%s", name, nearestOf(name, callNames(all)))
}

// callNames returns the names of all actions and views.
func callNames(all []resource) []string {
	var names []string
	for _, r := range all {
		for _, s := range r.subresources {
			if s.role == roleAction || s.role == roleView {
				names = append(names, s.name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// newCallOf returns the verb for an action or a view of one resource.
func (p *plugin) newCallOf(r resource, sub subresource) *cobra.Command {
	var given callFlags
	fields, unknown := p.server.fields(r, sub)
	cmd := &cobra.Command{
		Use:   sub.name + " KIND/NAME",
		Short: fmt.Sprintf("Call the %s %s of %s", sub.role, sub.name, r.full()),
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			o, err := p.object(words, sub.name, hasName(sub.name))
			if err != nil {
				return err
			}
			if sub.role == roleView {
				return p.view(cmd.Context(), o, sub, fields, given)
			}
			return p.act(cmd.Context(), o, sub, fields, given)
		},
		ValidArgsFunction: p.completeObjects(hasName(sub.name)),
	}
	cmd.Use = fmt.Sprintf("%s %s/NAME", sub.name, r.Resource)
	title := "Fields of " + sub.kind.Kind
	cmd.Long = fmt.Sprintf(
		"Calls the action %s of %s. Its fields are of %s, in %s.",
		sub.name,
		r.full(),
		sub.kind.Kind,
		sub.kind.GroupVersion(),
	)
	if sub.role == roleView {
		title, cmd.Long = "Options", fmt.Sprintf("Reads the view %s of %s.", sub.name, r.full())
	}
	if unknown != nil {
		cmd.Long += fmt.Sprintf("\n\nThe plugin could not read the fields, and has no flags for them: %v.", unknown)
	}
	given.add(cmd, sub.role == roleAction)
	own := cmd.Flags().FlagUsages()
	taken := func(name string) bool {
		return name == "help" || cmd.Flags().Lookup(name) != nil || p.globalFlag(name)
	}
	flags := fields.flags(taken)
	cmd.Flags().AddFlagSet(flags)
	cmd.Annotations = map[string]string{flagsOf: own, fieldsOf: flags.FlagUsages(), fieldsTitle: title}
	for _, f := range fields.all {
		values := f.enum
		if f.kind == "boolean" {
			values = []string{"true", "false"}
		}
		// The call fails for a missing flag.
		_ = cmd.RegisterFlagCompletionFunc(f.flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

func (p *plugin) globalFlag(name string) bool {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	p.newConfig().AddFlags(flags)
	return flags.Lookup(name) != nil
}

// view reads a view and prints it.
func (p *plugin) view(ctx context.Context, o object, sub subresource, f fields, given callFlags) error {
	printer, err := p.printer(given.print)
	if err != nil {
		return err
	}
	client, err := p.server.client()
	if err != nil {
		return err
	}
	request := client.Get().AbsPath(o.path(sub.name)...).SetHeader("Accept", "application/json, */*;q=0.1")
	for name, value := range f.values() {
		values, many := value.([]any)
		if !many {
			values = []any{value}
		}
		for _, value := range values {
			request.Param(name, fmt.Sprint(value))
		}
	}
	return p.send(ctx, request, printer, fmt.Sprintf("%s %s", o, sub.name))
}

// act sends an action and prints its answer.
func (p *plugin) act(ctx context.Context, o object, sub subresource, f fields, given callFlags) error {
	printer, err := p.printer(given.print)
	if err != nil {
		return err
	}
	if given.dryRun != "none" && given.dryRun != "server" {
		return misuse("--dry-run %q: use none or server", given.dryRun)
	}
	body, err := p.body(o, sub, f, given.file)
	if err != nil {
		return err
	}
	client, err := p.server.client()
	if err != nil {
		return err
	}
	request := client.Post().AbsPath(o.path(sub.name)...).SetHeader("Accept", "application/json, */*;q=0.1").
		SetHeader("Content-Type", "application/json").Param("fieldManager", p.program()).Param("fieldValidation", "Strict").Body(body)
	summary := fmt.Sprintf("%s %s: done", o, sub.name)
	if given.dryRun == "server" {
		request.Param("dryRun", "All")
		summary = fmt.Sprintf("%s %s: succeeds (server dry run)", o, sub.name)
	}
	answer, err := do(ctx, request)
	if err != nil {
		return err
	}
	started := new(unstructured.Unstructured)
	if json.Unmarshal(answer, &started.Object) != nil || started.GetKind() != operationKind || given.dryRun == "server" ||
		isCancelled(started) {
		return printer.print(answer, summary)
	}
	operation, err := p.operationOf(started)
	if err != nil {
		return err
	}
	if !given.wait {
		return printer.print(answer, fmt.Sprintf("%s started", operation))
	}
	ended, err := p.follow(ctx, operation, started, given.timeout)
	if err != nil {
		return err
	}
	if err := outcome(p.ErrOut, operation, ended); err != nil {
		return err
	}
	if result, ok := resultOf(ended); ok {
		return printer.print(result, summary)
	}
	return printer.print(nil, summary)
}

// body returns the content of the file, if there is one, with the fields that were given as flags.
func (p *plugin) body(o object, sub subresource, f fields, file string) ([]byte, error) {
	body := map[string]any{}
	if file != "" {
		body = nil
		text, err := p.read(file)
		if err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(text, &body); err != nil {
			return nil, misuse("read %s: the file is neither a YAML nor a JSON object: %v", file, err)
		}
		if body == nil {
			return nil, misuse("%s is empty: it must have a body of kind %s", file, sub.kind.Kind)
		}
		for name, want := range map[string]string{"kind": sub.kind.Kind, "apiVersion": sub.kind.GroupVersion().String()} {
			if got, ok := body[name]; ok && got != want {
				return nil, misuse("%s has %s %v, but %s requires %s", file, name, got, sub.name, want)
			}
		}
	}
	for name, value := range f.values() {
		body[name] = value
	}
	body["kind"], body["apiVersion"] = sub.kind.Kind, sub.kind.GroupVersion().String()
	if _, ok := body["metadata"]; f.hasMetadata && !ok {
		metadata := map[string]any{"name": o.name}
		if o.namespace != "" {
			metadata["namespace"] = o.namespace
		}
		body["metadata"] = metadata
	}
	return json.Marshal(body)
}

func (p *plugin) read(file string) ([]byte, error) {
	if file == "-" {
		text, err := io.ReadAll(p.In)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return text, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return text, nil
}

func (p *plugin) send(ctx context.Context, request *rest.Request, printer printer, summary string) error {
	answer, err := do(ctx, request)
	if err != nil {
		return err
	}
	return printer.print(answer, summary)
}

// printer prints answers in the format of --output.
type printer struct {
	flags *genericclioptions.PrintFlags
	out   io.Writer
}

func (p *plugin) printer(flags *genericclioptions.PrintFlags) (printer, error) {
	if flags.OutputFlagSpecified() {
		if _, err := flags.ToPrinter(); err != nil {
			return printer{}, usageError{err}
		}
	}
	return printer{flags, p.Out}, nil
}

// print prints an answer. Without --output, it prints the answer's own fields, without metadata, or, if there are
// none, the summary.
func (p printer) print(answer []byte, summary string) error {
	parsed := new(unstructured.Unstructured)
	if len(bytes.TrimSpace(answer)) > 0 && json.Unmarshal(answer, &parsed.Object) != nil {
		_, err := p.out.Write(answer) // text, which a view may answer with
		return err
	}
	template := p.flags.TemplatePrinterFlags.TemplateArgument
	if (p.flags.OutputFlagSpecified() || template != nil && *template != "") && parsed.Object != nil {
		how, err := p.flags.ToPrinter()
		if err != nil {
			return err
		}
		return how.PrintObj(parsed, p.out)
	}
	text, err := short(parsed)
	if err != nil {
		return err
	}
	if text == "" {
		text = summary + "\n"
	}
	_, err = io.WriteString(p.out, text)
	return err
}

// short returns the answer's own fields as YAML. For an object with a name it returns nothing: the name is in the
// summary, and get reads the rest.
func short(answer *unstructured.Unstructured) (string, error) {
	if answer.GetName() != "" {
		return "", nil
	}
	own := map[string]any{}
	for name, value := range answer.Object {
		if name != "kind" && name != "apiVersion" && name != "metadata" {
			own[name] = value
		}
	}
	if answer.GetKind() == "Status" {
		message, _, _ := unstructured.NestedString(answer.Object, "message")
		if message != "" {
			message = strings.TrimRight(message, "\n") + "\n"
		}
		return message, nil
	}
	if len(own) == 0 {
		return "", nil
	}
	text, err := yaml.Marshal(own)
	if err != nil {
		return "", fmt.Errorf("print the answer: %w", err)
	}
	return string(text), nil
}
