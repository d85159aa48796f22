package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/standin"
)

func newEnvtest() *cobra.Command {
	var dir string
	var controllers []string
	personality := string(standin.LikeEnvtest)
	cmd := &cobra.Command{
		Use:   "envtest",
		Short: "Make the programs that envtest starts: kube-apiserver, etcd and kubectl that are annex",
		Long: `Makes a folder with kube-apiserver, etcd and kubectl for KUBEBUILDER_ASSETS, and prints its path. All
three are this program under other names: nothing is downloaded, and another version of annex gets another
folder. The kube-apiserver serves all kinds of a kube-apiserver, keeps objects in memory, and ends with the
process that started it.`,
		Example: `  # any suite that uses envtest
  KUBEBUILDER_ASSETS=$(annex envtest) go test ./...

  # namespaces go and garbage is collected, as in a cluster
  KUBEBUILDER_ASSETS=$(annex envtest --personality like-cluster) go test ./...

  # deployments have replica sets, and those have pods, which stay pending
  KUBEBUILDER_ASSETS=$(annex envtest --controllers deployment-controller,replicaset-controller) go test ./...`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(standin.Personalities(), standin.Personality(personality)) {
				return usageError{fmt.Errorf("--personality %s: want %s", personality, personalities(" or "))}
			}
			if err := standin.CheckControllers(controllers); err != nil {
				return usageError{fmt.Errorf("--controllers: %w", err)}
			}
			if dir == "" {
				cache, err := os.UserCacheDir()
				if err != nil {
					return fmt.Errorf("find the folder of caches: %w: name a folder with --dir", err)
				}
				dir = filepath.Join(cache, "annex", "envtest")
			}
			dir, err := filepath.Abs(dir)
			if err != nil {
				return fmt.Errorf("--dir: %w", err)
			}
			version := strings.Trim(annexVersion(), "()")
			assets, err := standin.Assets(dir, version, standin.Personality(personality), controllers)
			if err != nil {
				// A suite that got no folder is set up wrong, as one with a wrong flag is.
				fmt.Fprintf(cmd.ErrOrStderr(), "annex: %v\n", err)
				return exitCode(exitUsage)
			}
			fmt.Fprintln(cmd.OutOrStdout(), assets)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the folder to make it in (default: annex/envtest in the user's folder of caches)")
	cmd.Flags().StringSliceVar(&controllers, "controllers", nil,
		"controllers that run beside those of the personality, by kube-controller-manager's "+
			"names; all selects all")
	cmd.Flags().StringVar(&personality, "personality", personality, "what happens beside the requests: "+personalities(" or "))
	return cmd
}

func personalities(separator string) string {
	var names []string
	for _, p := range standin.Personalities() {
		names = append(names, string(p))
	}
	return strings.Join(names, separator)
}
