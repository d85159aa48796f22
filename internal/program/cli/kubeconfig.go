package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/program/plan"
)

const ephemeralDurationFlag = "ephemeral-token-duration"

const pkcs12PasswordFlag = "pkcs12-password-file"

// kubeconfigFlags declares serve's flags for the kubeconfig. pkcs12PasswordFile is the path of a file that holds
// the password.
func kubeconfigFlags(flags *pflag.FlagSet, o *config.KubeconfigOptions, pkcs12PasswordFile *string) {
	flags.BoolVar(&o.None, "no-kubeconfig", false, "do not write the kubeconfig of the administrator")
	flags.StringVar(pkcs12PasswordFile, pkcs12PasswordFlag, "", "file with a password; the server also writes the administrator's "+
		"certificate and key as PKCS #12, encrypted with the password, to client.p12 beside the certificates")
	flags.BoolVar(
		&o.EphemeralToken,
		"ephemeral-token",
		false,
		"write a short-lived token of the administrator into the kubeconfig, instead of a key",
	)
	flags.DurationVar(&o.EphemeralTokenDuration, ephemeralDurationFlag, 0, "lifetime of the token of --ephemeral-token; the server "+
		"renews the token in its data directory (default 12h0m0s)")
}

// execTokenDuration is the lifetime of a token that a client requests through the exec plugin.
const execTokenDuration = 10 * time.Minute

// kubeconfigVerbs is the state that the verbs kubeconfig and kubeconfig token share.
type kubeconfigVerbs struct {
	users userVerbs
	// certificate is a file with a user's certificate and key; empty selects the administrator's.
	certificate string
	duration    time.Duration
}

func kubeconfigCommand(program Program) *cobra.Command {
	v := &kubeconfigVerbs{users: userVerbs{program: program}}
	n := newUser{output: formKubeconfig}
	byExec := false
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Write a kubeconfig with a short-lived token",
		Long: `Write a kubeconfig with a short-lived token of the administrator of a standalone server, or of
a user, instead of a key. Everyone who can read the key files can create tokens; the server may
be running or stopped.

With --exec, the kubeconfig holds no credentials: kubectl and other clients made with client-go
run this program whenever they need a token. Such a kubeconfig works only on this machine.`,
		Example: fmt.Sprintf(`  # the administrator, for an hour
  %[1]s kubeconfig --ephemeral-token-duration 1h --to admin.kubeconfig

  # a user with a certificate of user create --output pem
  %[1]s kubeconfig --certificate alice.pem --to alice.kubeconfig

  # kubectl runs this program for each token
  %[1]s kubeconfig --exec --to exec.kubeconfig`, program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if byExec && cmd.Flags().Changed(ephemeralDurationFlag) {
				return usage(
					fmt.Errorf("--%s has no effect with --exec: each token of --exec is "+
						"valid for %s", ephemeralDurationFlag, execTokenDuration),
				)
			}
			if err := n.checkTarget(cmd.OutOrStdout()); err != nil {
				return err
			}
			user, err := v.user()
			if err != nil {
				return err
			}
			return v.write(&n, user, byExec, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	persistent := cmd.PersistentFlags()
	o := &v.users.plan.Options
	persistent.StringVar(&o.DataDir, "data-dir", "data", "data directory of the server")
	persistent.StringVar(
		&o.CertDir,
		"cert-dir",
		"",
		"directory of the certificates that the server creates (default: cert in the data directory)",
	)
	persistent.StringVar(&v.certificate, "certificate", "", "file with the certificate and key of a user, in the format of user create "+
		"--output pem (default: the administrator's)")
	flags := cmd.Flags()
	flags.DurationVar(&v.duration, ephemeralDurationFlag, plan.EphemeralTokenDuration, "lifetime of the token")
	flags.BoolVar(&byExec, "exec", false, "make clients run this program for tokens, instead of writing a token")
	flags.StringVar(&n.server, "server", "", "URL of the server (default: the URL in the administrator's kubeconfig)")
	flags.StringVar(&n.to, "to", "-", "file to write, readable only by its owner; - is standard output")
	flags.BoolVar(&n.force, "force", false, "replace an existing file")
	cmd.AddCommand(v.token())
	return cmd
}

// user returns the credentials whose user the token is issued for.
func (v *kubeconfigVerbs) user() (*certs.Credentials, error) {
	if v.duration < plan.MinEphemeralTokenDuration {
		return nil, usage(fmt.Errorf("--%s %s is less than %s", ephemeralDurationFlag, v.duration, plan.MinEphemeralTokenDuration))
	}
	users, err := v.users.users()
	if err != nil {
		return nil, err
	}
	find := users.Administrator
	if v.certificate != "" {
		find = func() (*certs.Credentials, error) { return users.Issued(v.certificate) }
	}
	user, err := find()
	return user, refusals(err)
}

func (v *kubeconfigVerbs) write(n *newUser, user *certs.Credentials, byExec bool, out, errOut io.Writer) error {
	name := v.users.program.Name
	server, err := certs.ServerOf(v.users.plan.Path("kubeconfig"), name, n.server)
	if err != nil {
		return refusals(err)
	}
	target, err := n.open(out)
	if err != nil {
		return err
	}
	defer target.discard()
	if byExec {
		command, args, err := v.execCommand()
		if err != nil {
			return err
		}
		data, err := user.ExecKubeconfig(name, server, command, args...)
		if err != nil {
			return err
		}
		return target.write(data)
	}
	token, expires, err := user.Token(time.Now(), v.duration)
	if err != nil {
		return refusals(err)
	}
	data, err := user.TokenKubeconfig(name, server, token)
	if err != nil {
		return err
	}
	if err := target.write(data); err != nil {
		return err
	}
	fmt.Fprintf(errOut, "created a token of %s, valid until %s%s\n", user.Name(), expires.UTC().Format(time.RFC3339), target.where)
	return nil
}

// execCommand returns the command and arguments for clients to execute, valid in any working directory.
func (v *kubeconfigVerbs) execCommand() (string, []string, error) {
	// Keep the path as invoked: a link to a release may point to a newer release later.
	command, err := exec.LookPath(os.Args[0])
	if err == nil {
		command, err = filepath.Abs(command)
	}
	if err != nil {
		return "", nil, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"kubeconfig", "token"}
	o := &v.users.plan.Options
	for _, given := range []struct{ flag, path string }{{"--data-dir", o.DataDir}, {"--cert-dir", o.CertDir},
		{"--certificate", v.certificate}} {
		path := given.path
		if path == "" && given.flag != "--data-dir" {
			continue
		}
		if path != "" {
			if path, err = filepath.Abs(path); err != nil {
				return "", nil, fmt.Errorf("%s: %w", given.flag, err)
			}
		}
		args = append(args, given.flag+"="+path)
	}
	return command, args, nil
}

func (v *kubeconfigVerbs) token() *cobra.Command {
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Print a short-lived token as an ExecCredential",
		Long: `Print a short-lived token as an ExecCredential of client.authentication.k8s.io/v1. Clients with
a kubeconfig of kubeconfig --exec run this verb.`,
		Example: fmt.Sprintf("  curl --header \"Authorization: Bearer $(%s kubeconfig token | jq -r .status.token)\" ...", v.users.program.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkExecInfo(os.Getenv("KUBERNETES_EXEC_INFO")); err != nil {
				return usage(err)
			}
			v.duration = duration
			user, err := v.user()
			if err != nil {
				return err
			}
			token, expires, err := user.Token(time.Now(), duration)
			if err != nil {
				return refusals(err)
			}
			return printJSON(cmd.OutOrStdout(), clientauthenticationv1.ExecCredential{
				TypeMeta: metav1.TypeMeta{APIVersion: clientauthenticationv1.SchemeGroupVersion.String(), Kind: "ExecCredential"},
				Status:   &clientauthenticationv1.ExecCredentialStatus{Token: token, ExpirationTimestamp: &metav1.Time{Time: expires}},
			})
		},
	}
	cmd.Flags().DurationVar(&duration, ephemeralDurationFlag, execTokenDuration, "lifetime of the token")
	return cmd
}

// checkExecInfo rejects a client that announces another version of the exec plugin protocol in KUBERNETES_EXEC_INFO.
// The variable is empty when a person runs the verb.
func checkExecInfo(text string) error {
	if text == "" {
		return nil
	}
	var said metav1.TypeMeta
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return errors.New("KUBERNETES_EXEC_INFO is not a JSON object")
	}
	if want := clientauthenticationv1.SchemeGroupVersion.String(); said.APIVersion != want {
		return fmt.Errorf("KUBERNETES_EXEC_INFO has apiVersion %q, but this verb supports only %s: set it in the "+
			"kubeconfig", said.APIVersion, want)
	}
	return nil
}
