package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/program/console"
)

// consoleVerb are the arguments of the verb console.
type consoleVerb struct {
	program                      Program
	kubeconfig, context, dataDir string
	open                         bool
}

func consoleCommand(program Program) *cobra.Command {
	v := &consoleVerb{program: program}
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print a link that signs you in at the web console of a running server",
		Long: `Print a link that signs a browser in at the web console of a running server, as the user of a
kubeconfig. The link works once, for five minutes. The session has the rights of the user, and ends
with the credential in the kubeconfig.`,
		Example: fmt.Sprintf(`  # as the administrator of ./data, in a browser
  %[1]s console --open

  # as the user of another kubeconfig
  %[1]s console --kubeconfig alice.kubeconfig`, program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			link, err := v.link(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), link)
			if !v.open {
				return nil
			}
			if err := v.browse(cmd.Context(), link); err != nil {
				return fmt.Errorf("%w: open the link above yourself", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&v.kubeconfig, "kubeconfig", "", "kubeconfig with the server and its user (default: $KUBECONFIG, then kubeconfig in "+
		"the data directory, then ~/.kube/config)")
	flags.StringVar(&v.context, "context", "", "context in the kubeconfig (default: its current context)")
	flags.StringVar(&v.dataDir, "data-dir", "data", "data directory of the server")
	flags.BoolVar(&v.open, "open", false, "open the link in a browser")
	return cmd
}

// config returns the client configuration of the kubeconfig.
func (v *consoleVerb) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = v.kubeconfig
	own := filepath.Join(v.dataDir, "kubeconfig")
	if _, err := os.Stat(own); err == nil && v.kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		rules.ExplicitPath = own
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: v.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, usage(fmt.Errorf("kubeconfig: %w; name one with --kubeconfig, or the server's data directory with --data-dir", err))
	}
	config.Timeout = 30 * time.Second
	return config, nil
}

// link requests a link of the server.
func (v *consoleVerb) link(ctx context.Context) (string, error) {
	config, err := v.config()
	if err != nil {
		return "", err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	server := strings.TrimSuffix(base.String(), "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server+login.LinksPath, nil)
	if err != nil {
		return "", fmt.Errorf("request a sign-in link: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("request a sign-in link of %s: %w", server, err)
	}
	defer response.Body.Close()
	var answer struct {
		Link        string `json:"link"`
		Description string `json:"error_description"`
		Message     string `json:"message"`
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("request a sign-in link of %s: %w", server, err)
	}
	_ = json.Unmarshal(data, &answer) // another server may answer anything
	switch {
	case response.StatusCode == http.StatusOK && answer.Link != "":
		return server + console.SignInPath(answer.Link), nil
	case answer.Description != "":
		return "", fmt.Errorf("%s makes no sign-in link: %s", server, answer.Description)
	case response.StatusCode == http.StatusUnauthorized:
		return "", fmt.Errorf("%s does not accept the credential of the kubeconfig: it has expired, was revoked, or is of "+
			"another server; name another kubeconfig with --kubeconfig, or a user with --context", server)
	case slices.Contains([]int{http.StatusNotFound, http.StatusForbidden}, response.StatusCode):
		return "", fmt.Errorf("%s makes no sign-in links: start it with --console, and without --console-link=false", server)
	}
	return "", fmt.Errorf("%s makes no sign-in link: %s", server, response.Status)
}

// redirect is a page that leads to the link. All users of a machine see the arguments of programs, but not the content of
// this file.
const redirect = `<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={{.}}">
<title>Sign in</title>
<p><a href="{{.}}">Sign in</a>
`

// browse opens a link in the browser of the user.
func (v *consoleVerb) browse(ctx context.Context, link string) error {
	dir, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("open a browser: %w", err)
	}
	dir = filepath.Join(dir, "annex")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open a browser: %w", err)
	}
	var page strings.Builder
	parsed, err := template.New("").Parse(redirect)
	if err == nil {
		err = parsed.Execute(&page, link)
	}
	if err != nil {
		return fmt.Errorf("open a browser: %w", err)
	}
	path := filepath.Join(dir, "sign-in.html")
	if err := atomicfile.Write(path, []byte(page.String()), 0o600); err != nil {
		return fmt.Errorf("open a browser: %w", err)
	}
	command, args := opener(runtime.GOOS)
	if _, err := exec.LookPath(command); err != nil {
		return errors.New("no program opens a browser")
	}
	if err := exec.CommandContext(ctx, command, append(args, path)...).Run(); err != nil {
		return fmt.Errorf("open a browser: %w", err)
	}
	return nil
}

// opener returns the command that opens a file as the user's desktop does.
func opener(system string) (string, []string) {
	switch system {
	case "darwin":
		return "open", nil
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler"}
	}
	return "xdg-open", nil
}
