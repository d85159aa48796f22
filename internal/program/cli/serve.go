package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/typo"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/internal/program/systemd"
)

// Program is a server as a program: what its command line works on.
type Program struct {
	// Name is the server's.
	Name string
	// Define compiles the definition, or returns every mistake in it.
	Define func() (*definition.Definition, error)
	// Extensions add to the command line, in their order.
	Extensions []func(root *cobra.Command)
}

// server compiles the definition for verbs that make no environment.
func (p Program) server() (*define.Server, error) {
	definition, err := p.Define()
	if err != nil {
		return nil, err
	}
	return definition.Server, nil
}

// Run runs a verb and returns the exit code: 0 after a verb that did its work, 2 if the
// command line, the definition or the configuration is wrong, 1 if the verb failed.
func Run(ctx context.Context, program Program, args []string, out, errOut io.Writer) int {
	root := rootCommand(program)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(errOut, "%s: %s\n", program.Name, flagNames(oneError(err)))
	return exitCode(err)
}

func usage(err error) error {
	if err == nil {
		return nil
	}
	return config.Mistake(err)
}

func exitCode(err error) int {
	if errors.As(err, new(*config.Error)) {
		return 2
	}
	return 1
}

// oneError is the text of an error for a person: one line, but each of several
// mistakes of the user's on a line of its own.
func oneError(err error) string {
	if mistaken := (*config.Error)(nil); errors.As(err, &mistaken) {
		// Of the errors that hold several, those joined have a line for each.
		if mistakes, ok := mistaken.Unwrap().(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
			text := fmt.Sprintf("%d mistakes:", len(mistakes.Unwrap()))
			for _, e := range mistakes.Unwrap() {
				text += "\n  " + e.Error()
			}
			return text
		}
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func rootCommand(program Program) *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:           program.Name,
		Short:         "A Kubernetes-style API server",
		Long:          "A Kubernetes-style API server. It needs no cluster and no database: serve starts it, kubectl talks to it.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return printVersion(program, cmd.OutOrStdout())
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version, as the verb does")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			if nearest := nearestFlag(cmd, unknown.GetSpecifiedName()); nearest != "" {
				return usage(fmt.Errorf("%w: did you mean --%s?", err, nearest))
			}
		}
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(
		serveCommand(program),
		controllersCommand(program),
		manifestsCommand(program),
		storageCommand(program),
		userCommand(program),
		tokenKeyCommand(program),
		kubeconfigCommand(program),
		describeCommand(program),
		versionCommand(program),
	)
	for _, extend := range program.Extensions {
		extend(root)
	}
	completeValues(root)
	return root
}

// nearestFlag returns the flag of a command that a mistyped one was meant to be; empty if there is none.
func nearestFlag(cmd *cobra.Command, name string) string {
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return typo.Nearest(name, known)
}

// noArgs refuses arguments, which on the root command are mistyped verbs.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("unknown argument %q; see %s --help", args[0], cmd.CommandPath()))
	}
	return nil
}

func serveCommand(program Program) *cobra.Command {
	options, storage, addresses, audit := config.Options{}, storageOptions{}, addressOptions{}, auditFlags{}
	accessLog, serving := accessLogFlags{}, servingFlags{}
	log, configFile, pkcs12PasswordFile := logFlags{}, "", ""
	gates := map[string]bool{}
	callers, plane := callerFlags{}, planeFlags{}
	memory := memoryFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the API",
		Long: `Serve the API until interrupted.

The first start makes certificates and an administrator's kubeconfig in the data
directory; later starts keep them. The server listens on 127.0.0.1 with TLS and
lets in the administrator only, unless flags say otherwise.

With --aggregated, which a pod need not be told, it is a part of a cluster instead:
kube-apiserver sends it requests, and is asked who callers are, what they may do, and
which namespaces, webhooks and policies there are.

All flags may be in a file instead, named by --config.`,
		Example: fmt.Sprintf(`  # serve from ./data, then ask what there is
  %[1]s serve
  kubectl --kubeconfig data/kubeconfig api-resources

  # a throw-away server on a free port
  %[1]s serve --storage memory --secure-port 0 --data-dir $(mktemp -d)

  # a part of a cluster, with its objects in etcd
  %[1]s serve --aggregated --kubeconfig ~/.kube/config --etcd-servers https://etcd:2379`, program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			if err := readConfig(flags, nil, configFile); err != nil {
				return err
			}
			if err := errors.Join(
				memory.complete(flags, &options),
				zeroIsNone(flags, "history-age", &options.HistoryAge),
				zeroIsNone(flags, "history-revisions", &options.HistoryRevisions),
				zeroIsNone(flags, "etcd-compaction-interval", &storage.etcd.CompactionInterval),
			); err != nil {
				return err
			}
			definition, err := program.Define()
			if err != nil {
				return err
			}
			if err := clusterOptions(flags, &options, definition.Server); err != nil {
				return err
			}
			if err := errors.Join(
				audit.complete(flags, &options.Audit),
				accessLog.complete(flags, &options.AccessLog),
				serving.complete(flags, &options.Serving),
			); err != nil {
				return err
			}
			if err := errors.Join(
				callers.complete(flags, &options),
				completeAccounts(flags, &options.ServiceAccounts),
				plane.complete(flags, &options.ControlPlane),
			); err != nil {
				return err
			}
			if err := addresses.complete(&options); err != nil {
				return usage(err)
			}
			if pkcs12PasswordFile != "" {
				if options.Kubeconfig.PKCS12Password, err = readPassword(pkcs12PasswordFile); err != nil {
					return usage(fmt.Errorf("--%s %s: %w", pkcs12PasswordFlag, pkcs12PasswordFile, err))
				}
			}
			// A server outlives the process that reads what it prints.
			signal.Ignore(syscall.SIGPIPE)
			logTo(cmd.ErrOrStderr(), log.format, log.verbosity)
			if err := setFeatures(utilfeature.DefaultMutableFeatureGate, gates, &options); err != nil {
				return usage(err)
			}
			p, err := storage.resolve(definition, options)
			if err != nil {
				return err
			}
			return runServer(cmd.Context(), p, definition.NewEnv, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	storageFlags(flags, &storage, &options)
	addresses.declare(flags)
	audit.declare(flags, &options.Audit)
	accessLog.declare(flags, &options.AccessLog)
	admissionFlags(flags, &options.Admission)
	plane.declare(flags)
	serving.declare(flags, &options.Serving)
	fairnessFlag(flags, &options.PriorityAndFairness)
	consoleFlags(flags, &options)
	queryFlag(flags, &options.QueryPrefix)
	callers.declare(flags, &options)
	accountFlags(flags, &options)
	loginFlags(flags, &options.Login)
	kubeconfigFlags(flags, &options.Kubeconfig, &pkcs12PasswordFile)
	clusterFlags(flags, &options)
	flags.DurationVar(
		&storage.etcd.CompactionInterval,
		"etcd-compaction-interval",
		5*time.Minute,
		"how much of etcd's history is kept at least; 0 leaves compaction to others",
	)
	flags.DurationVar(
		&storage.etcd.HealthcheckTimeout,
		"etcd-healthcheck-timeout",
		2*time.Second,
		"how long etcd may take to answer before the server is not ready; it is asked twice in this time",
	)
	flags.DurationVar(
		&storage.etcd.StartTimeout,
		"etcd-start-timeout",
		0,
		"exit if etcd does not answer for this long at start; 0 waits, not ready, as long as it takes",
	)
	flags.StringVar(&options.TLSCertFile, "tls-cert-file", "", "serving certificate to use instead of the server's own (PEM)")
	flags.StringVar(&options.TLSPrivateKeyFile, "tls-private-key-file", "", "key of --tls-cert-file (PEM)")
	flags.StringVar(&options.CertDir, "cert-dir", "", "directory of the certificates that the server makes, or of apiserver.crt and "+
		"apiserver.key (default: cert in the data directory)")
	flags.BoolVar(
		&options.EncryptionConfigReload,
		"encryption-provider-config-automatic-reload",
		false,
		"read the file of --encryption-provider-config again when it changes",
	)
	flags.BoolVar(&options.ServeDespiteUndecodable, "serve-despite-undecodable", false, "serve although stored objects cannot be "+
		"decrypted, or are stored in a version or media type that the server does not have any more, so that they can be deleted")
	flags.DurationVar(&options.HistoryAge, "history-age", 5*time.Minute, "how long old revisions stay readable at least")
	flags.Int64Var(&options.HistoryRevisions, "history-revisions", 10_000, "how many old revisions stay readable at least")
	memory.declare(flags)
	flags.StringSliceVar(&options.Controllers, "controllers", []string{controllers.All}, controllersUsage)
	flags.BoolVar(&options.UnrestrictedUpdate, "unrestricted-update", false, "accept updates without a resource version, which overwrite "+
		"what others have written; for debugging")
	flags.DurationVar(&options.RequestTimeout, "request-timeout", 0, "how long a request other than a watch may take (default 1m)")
	flags.DurationVar(
		&options.ShutdownTimeout,
		"shutdown-timeout",
		0,
		"how long a shutdown waits for requests in progress; then they are cut off (default 10s)",
	)
	flags.DurationVar(
		&options.ShutdownDelay,
		"shutdown-delay-duration",
		0,
		"how long a server that is told to stop still answers as before, while /readyz fails",
	)
	configFileFlag(flags, &configFile)
	flags.StringVar(
		&options.TracingConfigFile,
		"tracing-config-file",
		"",
		"file that says of how many requests spans are sent, and to which collector (TracingConfiguration)",
	)
	flags.Var(cliflag.NewMapStringBool(&gates), "feature-gates", "features of the machinery, for the whole process, as in "+
		"WatchListCompression=false; the values of others are the machinery's. FastPath=false leaves all requests to upstream's handlers")
	log.declare(flags)
	flags.IntVar(&log.verbosity, "v", 0, "")
	_ = flags.MarkHidden("v") // it is there: upstream writes it with two dashes
	groupFlags(cmd)
	return cmd
}

// zeroIsNone turns what a flag says, where 0 is none, into what an option says, where a
// negative number is: nothing is kept, or nothing bounded.
func zeroIsNone[T ~int | ~int64](flags *pflag.FlagSet, name string, value *T) error {
	switch {
	case *value < 0:
		return usage(fmt.Errorf("--%s %s is negative", name, flags.Lookup(name).Value))
	case *value == 0:
		*value = -1
	}
	return nil
}

// runServer runs a server and says on out what to do with it.
func runServer(ctx context.Context, p *plan.Plan, newEnv definition.EnvFunc, out io.Writer) error {
	name := p.Definition.Name
	started := budget.Start()
	defer started()
	instance, err := serve.New(ctx, p, newEnv)
	if err != nil {
		return usage(err)
	}
	fmt.Fprint(out, relativeLogs(p.Options))
	cluster := instance.Cluster()
	if cluster != "" {
		fmt.Fprintf(out, "%s is aggregated by %s\n", name, cluster)
	}
	manager, err := systemd.FromEnvironment()
	if err != nil {
		return errors.Join(usage(err), instance.Close())
	}
	defer manager.Watch(ctx, instance.IsAlive)()
	defer context.AfterFunc(ctx, manager.Stopping)()
	return instance.Run(ctx, func() {
		started()
		manager.Ready()
		urls := instance.URL()
		for _, more := range []string{instance.InsecureURL(), shortPath(instance.Socket())} {
			if more != "" {
				urls += " and " + more
			}
		}
		if cluster != "" {
			fmt.Fprintf(out, "%s is ready at %s\n", name, urls)
			return
		}
		if instance.Kubeconfig() == "" {
			fmt.Fprintf(out, "%s listens on %s\n", name, urls)
			return
		}
		kubeconfig := shortPath(instance.Kubeconfig())
		page := ""
		if url := instance.ConsoleURL(); url != "" {
			page = "console: " + url + "\n"
		}
		fmt.Fprintf(
			out,
			"%s listens on %s\nkubeconfig: %s\n%stry: %s --kubeconfig %s api-resources\n",
			name,
			urls,
			kubeconfig,
			page,
			kubectl(),
			shellWord(kubeconfig),
		)
	})
}

// relativeLogs has a line for each log whose path depends on the working directory, with the absolute path: a service
// manager may start the program anywhere.
func relativeLogs(o config.Options) string {
	var lines strings.Builder
	for _, log := range []struct{ name, path string }{{"audit log", o.Audit.Log.Path}, {"access log", o.AccessLog.Path}} {
		if log.path == "" || log.path == "-" || filepath.IsAbs(log.path) {
			continue
		}
		if absolute, err := filepath.Abs(log.path); err == nil {
			fmt.Fprintf(&lines, "%s: %s\n", log.name, absolute)
		}
	}
	return lines.String()
}

// kubectl is the command to type: the one in PATH, or else the one that a project
// keeps in its folder bin.
func kubectl() string {
	const local = "bin/kubectl"
	if _, err := exec.LookPath("kubectl"); err != nil {
		if info, err := os.Stat(local); err == nil && !info.IsDir() {
			return local
		}
	}
	return "kubectl"
}

// shortPath is a path as one would type it here.
func shortPath(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	if relative, err := filepath.Rel(dir, path); err == nil && !strings.HasPrefix(relative, "..") {
		return relative
	}
	return path
}

// shellWord is text as a shell reads it as one word.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r > unicode.MaxASCII || unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+:@%,=", r)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}
