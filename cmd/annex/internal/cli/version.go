package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	output := "text"
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of annex and of its Kubernetes libraries",
		Long: `Prints the versions of annex, of the Kubernetes libraries with the built-in generators, and of
Go. If the tool was built from a checkout, its version is (devel).`,
		Example: `  annex version
  annex version --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Annex      string `json:"annex"`
				Kubernetes string `json:"kubernetes"`
				Go         string `json:"go"`
			}{annexVersion(), moduleVersion("k8s.io/code-generator"), runtime.Version()}
			switch output {
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "annex %s\nkubernetes %s\n%s\n", v.Annex, v.Kubernetes, v.Go)
				return err
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(v)
			}
			return usageError{fmt.Errorf("--output %q: use text or json", output)}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "format: text or json")
	return cmd
}
func annexVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "unknown"
}
