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
		Short: "Print the version of annex and of the Kubernetes libraries in it",
		Long: `Prints the version of annex, of the Kubernetes libraries whose generators are in it,
and of Go. A tool that was built from a checkout says (devel).`,
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
