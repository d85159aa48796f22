package cli

import (
	"github.com/spf13/cobra"

	library "github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/workloads"
)

// newServer returns the verbs of a server with a control plane and no Go code of the user's. They parse their flags
// themselves, as every server's verbs do.
func newServer() []*cobra.Command {
	server := library.Server{Name: "annex", Title: "Annex", ControlPlane: controlplane.New(controlplane.Options{
		Extension: workloads.New(workloads.Options{}), ExtensionOff: true,
	})}
	var verbs []*cobra.Command
	for _, verb := range []struct{ use, short, long, example string }{
		{"serve", "Run an API server with a control plane: CustomResourceDefinitions, and no Go of your own",
			`Runs a Kubernetes-style API server that needs no cluster and no database. It serves the custom
resources of the CustomResourceDefinitions that you apply to it; with --workloads, it also serves
pods, deployments and all other kinds of a kube-apiserver. It has the same flags as every other
server: annex serve --help lists them, and docs/reference/cli.md describes them.`,
			"  annex serve --data-dir data\n  kubectl --kubeconfig data/kubeconfig apply -f crd.yaml"},
		{"console", "Print a link that signs you in at the console of annex serve", "", "  annex console --open --data-dir data"},
		{"user", "Create, list and revoke users of annex serve", "", "  annex user create amy --data-dir data"},
		{"kubeconfig", "Write a kubeconfig for annex serve", "", "  annex kubeconfig --data-dir data"},
		{"token-key", "List and rotate the keys of the service accounts of annex serve", "", "  annex token-key rotate --data-dir data"},
		{"storage", "Back up, restore, verify and compact the storage of annex serve", "", "  annex storage backup backup.annex " +
			"--data-dir data"},
	} {
		verbs = append(verbs, &cobra.Command{
			Use: verb.use, Short: verb.short, Long: verb.long, Example: verb.example,
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				code := program.Run(cmd.Context(), server, append([]string{cmd.Name()}, args...), cmd.OutOrStdout(), cmd.ErrOrStderr())
				if code != 0 {
					return exitCode(code)
				}
				return nil
			},
		})
	}
	return verbs
}
