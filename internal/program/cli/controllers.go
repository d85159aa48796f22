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
		Short: "Run the controllers for a server that runs elsewhere",
		Long: `Run the server's controllers in a process of their own, until interrupted.

The server is the one of the kubeconfig; tell it to run none of them itself, with
serve --controllers=''. Of several such processes one works at a time: they elect a
leader by a Lease in the server. When it is gone, another one works within 15 seconds.`,
		Example: fmt.Sprintf(`  # the server without controllers, and the controllers beside it
  %[1]s serve --controllers=''
  %[1]s controllers --kubeconfig data/kubeconfig

  # all but one
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
				return usage(errors.New("there is no controller to run"))
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
			logTo(cmd.ErrOrStderr(), log.format, log.verbosity)
			return usageOf(serve.Controllers{
				Definition: definition, Selected: selected, Config: config, Election: election, Probes: probes,
				Started: func() { fmt.Fprintf(cmd.OutOrStdout(), "%s runs controllers for %s\n", program.Name, config.Host) },
			}.Run(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "the server to work for (default: $KUBECONFIG, or ~/.kube/config)")
	flags.StringVar(&kubeContext, "context", "", "context in the kubeconfig (default: its current one)")
	flags.StringSliceVar(&selection, "controllers", []string{controllers.All}, controllersUsage)
	flags.BoolVar(&election.Enabled, "leader-elect", true, "work only while holding a Lease in the server")
	flags.StringVar(&election.Namespace, "leader-elect-resource-namespace", "default", "namespace of the Lease")
	flags.StringVar(&election.Name, "leader-elect-resource-name", "", "name of the Lease (default: the server's name and -controllers)")
	flags.DurationVar(
		&election.LeaseDuration,
		"leader-elect-lease-duration",
		15*time.Second,
		"how long others wait for a leader that is gone",
	)
	flags.DurationVar(
		&election.RenewDeadline,
		"leader-elect-renew-deadline",
		10*time.Second,
		"how long the leader tries to renew before it gives up",
	)
	flags.DurationVar(&election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "how long to wait between tries")
	flags.StringVar(&probes.Health, "health-probe-bind-address", "", "IP address and port at which /healthz and /readyz are answered by "+
		"plain HTTP, to all who ask (default: nowhere)")
	flags.StringVar(&probes.Metrics, "metrics-bind-address", "", "IP address and port at which /metrics is answered by plain HTTP, to all "+
		"who ask; it may be that of health (default: nowhere)")
	log.declare(flags)
	return cmd
}

const controllersUsage = "controllers to run: * is all, name is that one, -name is all but that one"

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
