package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func controllersCommand(program Program) *cobra.Command {
	var kubeconfig, kubeContext string
	var selection []string
	log := logFlags{}
	election, probes := serve.LeaderElection{}, serve.Probes{}
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run the controllers of a server in a separate process",
		Long: `Run the server's controllers in a separate process, until interrupted.

The kubeconfig selects the server. Start that server with serve --controllers='', so that
it runs no controllers. If several such processes run, they elect a leader by a Lease in
the server, and only the leader works. After the leader fails, another process takes over
within 15 seconds.`,
		Example: fmt.Sprintf(`  # run the server without controllers, and the controllers in another process
  %[1]s serve --controllers=''
  %[1]s controllers --kubeconfig data/kubeconfig

  # run all controllers except one
  %[1]s controllers --kubeconfig data/kubeconfig --controllers='*,-janitor'`, program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			definition, err := program.Define()
			if err != nil {
				return err
			}
			selected, err := controllers.Select(definition.Server.Controllers, selection)
			if err != nil {
				return usage(fmt.Errorf("--controllers: %w", err))
			}
			if len(selected) == 0 {
				return usage(errors.New("no controllers to run: --controllers selects none"))
			}
			config, err := clientConfig(kubeconfig, kubeContext)
			if err != nil {
				return usage(err)
			}
			if err := election.Complete(program.Name); err != nil {
				return usage(err)
			}
			if err := probes.Check(); err != nil {
				return usage(err)
			}
			logTo(cmd.Context(), cmd.ErrOrStderr(), log.format, log.verbosity)
			return usageOf(serve.Controllers{
				Definition: definition, Selected: selected, Config: config, Election: election, Probes: probes,
				Started: func() { fmt.Fprintf(cmd.OutOrStdout(), "%s runs controllers for %s\n", program.Name, config.Host) },
			}.Run(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the server (default: $KUBECONFIG, or ~/.kube/config)")
	flags.StringVar(&kubeContext, "context", "", "context in the kubeconfig (default: its current one)")
	flags.StringSliceVar(&selection, "controllers", []string{controllers.All}, controllersUsage)
	flags.BoolVar(&election.Enabled, "leader-elect", true, "elect a leader by a Lease in the server, and work only as leader")
	flags.StringVar(&election.Namespace, "leader-elect-resource-namespace", "default", "namespace of the Lease")
	flags.StringVar(&election.Name, "leader-elect-resource-name", "", "name of the Lease (default: the server's name and -controllers)")
	flags.DurationVar(
		&election.LeaseDuration,
		"leader-elect-lease-duration",
		15*time.Second,
		"time after which other processes replace a leader that does not renew its Lease",
	)
	flags.DurationVar(
		&election.RenewDeadline,
		"leader-elect-renew-deadline",
		10*time.Second,
		"time after which a leader that cannot renew its Lease gives up",
	)
	flags.DurationVar(&election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "wait between attempts to acquire or renew "+
		"the Lease")
	flags.StringVar(&probes.Health, "health-probe-bind-address", "", "IP address and port for /healthz and /readyz over plain HTTP without "+
		"authentication (default: not served)")
	flags.StringVar(&probes.Metrics, "metrics-bind-address", "", "IP address and port for /metrics over plain HTTP without "+
		"authentication; may equal the address of the health checks (default: not served)")
	log.declare(flags)
	return cmd
}

const controllersUsage = "controllers to run: * selects all that run by default, all selects all, NAME selects one, -NAME excludes one"

// clientConfig reads a kubeconfig as kubectl does.
func clientConfig(path, kubeContext string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).
		ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return config, nil
}

// usageOf marks an error that the user can fix as a usage error.
func usageOf(err error) error {
	if errors.Is(err, serve.ErrNoLeases) {
		return usage(err)
	}
	return err
}
