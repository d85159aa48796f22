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
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/typo"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/internal/program/systemd"
)

// Program is a server with a command line.
type Program struct {
	// Name is the server's name.
	Name string
	// Define compiles the definition, or returns every mistake in it.
	Define func() (*definition.Definition, error)
	// Extensions modify the root command, in order.
	Extensions []func(root *cobra.Command)
}

// server compiles the definition, for verbs that need no environment.
func (p Program) server() (*define.Server, error) {
	definition, err := p.Define()
	if err != nil {
		return nil, err
	}
	return definition.Server, nil
}

// Run executes a verb and returns the exit code: 0 if the verb succeeded, 2 if the command line, the definition or
// the configuration is wrong, 1 if the verb failed.
func Run(ctx context.Context, program Program, args []string, out, errOut io.Writer) int {
	root := rootCommand(program)
	root.SetArgs(withVerb(root, args))
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(errOut, "%s: %s\n", program.Name, flagNames(oneError(err)))
	return exitCode(err)
}

// withVerb puts serve in front of a command line that begins with a flag and has no verb, as the command lines of
// upstream's servers do. Flags of the root command, such as --version, stay its own.
func withVerb(root *cobra.Command, args []string) []string {
	if len(args) == 0 || len(args[0]) < 2 || args[0][0] != '-' || args[0] == "--" {
		return args
	}
	if found, _, err := root.Find(args); err != nil || found != root {
		return args
	}
	name, _, _ := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
	if name == "help" || name == "h" || root.Flags().Lookup(name) != nil || root.PersistentFlags().Lookup(name) != nil {
		return args
	}
	return append([]string{serveVerb}, args...)
}

// serveVerb is the verb of a command line without a verb.
const serveVerb = "serve"

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

// oneError formats an error for display as one line. If it holds several of the user's mistakes, each is on a line
// of its own.
func oneError(err error) string {
	if mistaken := (*config.Error)(nil); errors.As(err, &mistaken) {
		// Among errors that wrap several, only joined errors have a line for each.
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
		Use:   program.Name,
		Short: "A Kubernetes-style API server",
		Long: "A Kubernetes-style API server that needs no cluster and no database. Start it with serve, and use it with kubectl. " +
			"Flags without a verb are those of serve.",
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
	root.Flags().BoolVar(&version, "version", false, "print the version, like the verb version")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			name := unknown.GetSpecifiedName()
			if hint := foreignFlag(cmd, name); hint != "" {
				return usage(fmt.Errorf("%w: %s", err, hint))
			}
			if nearest := nearestFlag(cmd, name); nearest != "" {
				return usage(fmt.Errorf("%w: did you mean --%s?", err, nearest))
			}
		}
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(
		serveCommand(program),
		consoleCommand(program),
		controllersCommand(program),
		manifestsCommand(program),
		storageCommand(program),
		userCommand(program),
		tokenKeyCommand(program),
		kubeconfigCommand(program),
		describeCommand(program),
		openapiCommand(program),
		versionCommand(program),
	)
	for _, extend := range program.Extensions {
		extend(root)
	}
	completeValues(root)
	return root
}

// nearestFlag returns the flag of a command whose name is closest to a mistyped name; empty if none is close.
func nearestFlag(cmd *cobra.Command, name string) string {
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return typo.Nearest(name, known)
}

// noArgs rejects arguments. On the root command, an argument is a mistyped verb.
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
		Use:   serveVerb,
		Short: "Serve the API",
		Long: `Serve the API until interrupted.

The first start creates certificates and an administrator's kubeconfig in the data
directory; later starts keep them. By default, the server listens on 127.0.0.1 with TLS
and admits only the administrator.

With --aggregated, which is the default in a pod, the server is a part of a cluster:
kube-apiserver forwards requests to it, authenticates users and authorizes requests, and
has the namespaces, webhooks and policies that apply to its objects.

All flags may also be set in a file, with --config.`,
		Example: fmt.Sprintf(`  # serve from ./data, then list the resources
  %[1]s serve
  kubectl --kubeconfig data/kubeconfig api-resources

  # a temporary server on a free port
  %[1]s serve --storage memory --secure-port 0 --data-dir $(mktemp -d)

  # an aggregated server of a cluster, with its objects in etcd
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
			// The server must survive the end of a process that reads its output through a pipe.
			signal.Ignore(syscall.SIGPIPE)
			logTo(cmd.Context(), cmd.ErrOrStderr(), log.format, log.verbosity)
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
		"minimum time that etcd keeps its history; 0 disables compaction by the server",
	)
	flags.DurationVar(
		&storage.etcd.HealthcheckTimeout,
		"etcd-healthcheck-timeout",
		2*time.Second,
		"time without an answer of etcd after which the server is not ready; the server checks etcd twice in this time",
	)
	flags.DurationVar(
		&storage.etcd.StartTimeout,
		"etcd-start-timeout",
		0,
		"time without an answer of etcd at start after which the server exits; 0 waits without limit, and the server is not ready meanwhile",
	)
	flags.StringVar(&options.TLSCertFile, "tls-cert-file", "", "file with the serving certificate, instead of the one that the server "+
		"creates (PEM)")
	flags.StringVar(&options.TLSPrivateKeyFile, "tls-private-key-file", "", "file with the key of --tls-cert-file (PEM)")
	flags.StringVar(&options.CertDir, "cert-dir", "", "directory of the certificates that the server creates, or of apiserver.crt and "+
		"apiserver.key (default: cert in the data directory)")
	flags.BoolVar(
		&options.EncryptionConfigReload,
		"encryption-provider-config-automatic-reload",
		false,
		"reload the file of --encryption-provider-config when it changes",
	)
	flags.BoolVar(&options.ServeDespiteUndecodable, "serve-despite-undecodable", false, "start even if the server cannot decrypt "+
		"some stored objects, or no longer has their version or media type, so that clients can delete them")
	flags.DurationVar(&options.HistoryAge, "history-age", 5*time.Minute, "minimum time that old revisions stay readable")
	flags.Int64Var(&options.HistoryRevisions, "history-revisions", 10_000, "minimum number of old revisions that stay readable")
	historyFlags(flags, &options)
	memory.declare(flags)
	flags.StringSliceVar(&options.Controllers, "controllers", []string{controllers.All}, controllersUsage)
	flags.BoolVar(&options.UnrestrictedUpdate, "unrestricted-update", false, "accept updates without a resource version, which overwrite "+
		"concurrent changes; for debugging")
	flags.DurationVar(&options.RequestTimeout, "request-timeout", 0, "maximum duration of a request, except watches (default 1m)")
	flags.DurationVar(
		&options.ShutdownTimeout,
		"shutdown-timeout",
		0,
		"time that a shutdown waits for requests in progress before it closes their connections (default 10s)",
	)
	flags.DurationVar(
		&options.ShutdownDelay,
		"shutdown-delay-duration",
		0,
		"time that a stopping server keeps serving while /readyz fails",
	)
	configFileFlag(flags, &configFile)
	flags.StringVar(
		&options.TracingConfigFile,
		"tracing-config-file",
		"",
		"file with the collector and the sampling rate of traces (TracingConfiguration)",
	)
	flags.Var(cliflag.NewMapStringBool(&gates), "feature-gates", "feature gates of the process, as in WatchListCompression=false; "+
		"other gates keep upstream's defaults. FastPath=false sends all requests through upstream's handlers")
	log.declare(flags)
	flags.IntVar(&log.verbosity, "v", 0, "")
	_ = flags.MarkHidden("v") // the flag exists: upstream writes it with two dashes
	groupFlags(cmd)
	return cmd
}

// zeroIsNone converts a flag's value to an option's. A flag of 0 disables a cache or removes a bound; in an option,
// 0 is the default and a negative number disables.
func zeroIsNone[T ~int | ~int64](flags *pflag.FlagSet, name string, value *T) error {
	switch {
	case *value < 0:
		return usage(fmt.Errorf("--%s %s is negative", name, flags.Lookup(name).Value))
	case *value == 0:
		*value = -1
	}
	return nil
}

// runServer runs a server and prints on out how to use it.
func runServer(ctx context.Context, p *plan.Plan, newEnv definition.EnvFunc, out io.Writer) error {
	name := p.Definition.Name
	started := budget.Start()
	defer started()
	instance, err := serve.New(ctx, p, newEnv)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // as after a stop at any later time
	}
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
			page = "console: " + url + "\n" + signIn(ctx, p, instance, kubeconfig, out)
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

// signIn returns a line about how to sign in at the console: by a link if it may be printed on out, or else by the command
// that makes one.
func signIn(ctx context.Context, p *plan.Plan, instance *serve.Server, kubeconfig string, out io.Writer) string {
	if !p.Links() {
		return ""
	}
	command := fmt.Sprintf("%s console --open --kubeconfig %s", invoked(p.Definition.Name), shellWord(kubeconfig))
	file, isFile := out.(*os.File)
	if p.PrintsLink(isFile && term.IsTerminal(int(file.Fd()))) {
		link, err := instance.SignInLink(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to make the sign-in link of the administrator")
		} else if link != "" {
			return fmt.Sprintf("sign in: %s (works once, for %s; another: %s)\n", link, duration.HumanDuration(login.LinkLifetime), command)
		}
	}
	return "sign in: " + command + "\n"
}

// invoked returns how to run this program again: by its name, or as go run does if that runs it from the working directory.
func invoked(name string) string {
	if !strings.Contains(filepath.ToSlash(os.Args[0]), "/go-build") {
		return name
	}
	if _, err := os.Stat("main.go"); err != nil {
		return name
	}
	return "go run ."
}

// relativeLogs returns a line for each log whose path depends on the working directory, with the absolute path: a
// service manager may start the program in any directory.
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

// kubectl returns the kubectl command to type: the one in PATH, or else the one in the project's folder bin.
func kubectl() string {
	const local = "bin/kubectl"
	if _, err := exec.LookPath("kubectl"); err != nil {
		if info, err := os.Stat(local); err == nil && !info.IsDir() {
			return local
		}
	}
	return "kubectl"
}

// shortPath returns a path relative to the working directory if it is inside of it.
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

// shellWord quotes a text so that a shell reads it as one word.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r > unicode.MaxASCII || unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+:@%,=", r)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}
