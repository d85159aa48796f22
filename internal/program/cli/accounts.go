package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/program/plan"
)

const (
	signingKeyFlag         = "service-account-signing-key-file"
	maxTokenExpirationFlag = "service-account-max-token-expiration"
)

// accountFlags declares the flags for service accounts, with upstream's names.
func accountFlags(flags *pflag.FlagSet, o *config.Options) {
	a := &o.ServiceAccounts
	flags.StringArrayVar(&a.Issuers, "service-account-issuer", nil, "issuer that tokens of service accounts name, the https URL at which "+
		"others reach the server; may be given several times, and the first one signs (default https://NAME of the server)")
	flags.StringSliceVar(&o.APIAudiences, "api-audiences", nil, "what the server calls itself, for tokens of service accounts to be meant "+
		"for (default: the issuers)")
	flags.StringVar(&a.SigningKeyFile, signingKeyFlag, "", "private key that signs tokens of service accounts (PEM), for servers that "+
		"share it (default: service-account.key beside the certificates, which the server makes)")
	flags.StringArrayVar(
		&a.KeyFiles,
		"service-account-key-file",
		nil,
		"more keys whose tokens of service accounts are accepted (PEM); may be given several times",
	)
	flags.StringVar(&a.JWKSURI, "service-account-jwks-uri", "", "https URL of the public keys, which /.well-known/openid-configuration "+
		"names (default: the server's own)")
	flags.DurationVar(
		&a.MaxTokenExpiration,
		maxTokenExpirationFlag,
		0,
		"how long tokens of service accounts are valid at most; 0 has no bound (default 8760h0m0s)",
	)
}

// completeAccounts converts values that flags and options express differently.
func completeAccounts(flags *pflag.FlagSet, a *config.ServiceAccountOptions) error {
	if flags.Changed(signingKeyFlag) && a.SigningKeyFile == "" {
		return usage(fmt.Errorf("--%s is empty", signingKeyFlag))
	}
	if flags.Changed(maxTokenExpirationFlag) {
		return zeroIsNone(flags, maxTokenExpirationFlag, &a.MaxTokenExpiration)
	}
	return nil
}

// keyVerbs is the state that the verbs below token-key share.
type keyVerbs struct {
	program Program
	plan    plan.Plan
}

func tokenKeyCommand(program Program) *cobra.Command {
	v := &keyVerbs{program: program}
	cmd := &cobra.Command{
		Use:   "token-key",
		Short: "Rotate the key that signs tokens of service accounts",
		Long: `Rotate the key that signs tokens of the service accounts of a server that stands alone. The
server may be running or not. Service accounts of one in a cluster are the cluster's.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	o := &v.plan.Options
	flags.StringVar(&o.DataDir, "data-dir", "data", "data directory of the server")
	flags.StringVar(&o.CertDir, "cert-dir", "", "directory of the certificates that the server makes (default: cert in the data directory)")
	flags.StringVar(&o.ServiceAccounts.SigningKeyFile, signingKeyFlag, "", "the key file, if the server has been given one (default: "+
		"service-account.key beside the certificates)")
	cmd.AddCommand(v.rotate(), v.list())
	return cmd
}

// file returns the path of the key file, which must exist.
func (v *keyVerbs) file() (string, error) {
	path, _ := v.plan.SigningKey()
	if path == "" {
		return "", usage(errors.New("without a data directory, the key lives as long as its server: give --data-dir, here and to serve"))
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", usage(fmt.Errorf("there is no key %s: start the server once, or name the key with --%s", path, signingKeyFlag))
	case err != nil:
		return "", fmt.Errorf("key file: %w", err)
	}
	return path, nil
}

func (v *keyVerbs) rotate() *cobra.Command {
	var longest time.Duration
	var discard bool
	var output string
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Sign with a new key from now on, and accept the old one's tokens while they last",
		Long: `Sign with a new key from now on. The old key's private part is gone then; its public part is
kept beside the new key, and tokens that it has signed are accepted until the last of them has
expired: for as long as the server lets tokens live. Servers that use the file notice at once.`,
		Example: fmt.Sprintf(`  %[1]s token-key rotate

  # the key has been stolen: refuse all tokens that there are
  %[1]s token-key rotate --discard-old`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if longest < 0 {
				return usage(fmt.Errorf("--%s %s is negative", maxTokenExpirationFlag, longest))
			}
			path, err := v.file()
			if err != nil {
				return err
			}
			return v.rotateFile(cmd.Context(), path, longest, discard, output, cmd.OutOrStdout())
		},
	}
	cmd.Flags().
		DurationVar(&longest, maxTokenExpirationFlag, plan.TokenExpiration, "how long tokens may live, as it is given to serve; 0 keeps the "+
			"old key for ever")
	cmd.Flags().BoolVar(&discard, "discard-old", false, "keep no old key: all tokens that were signed before are refused at once")
	outputFlag(cmd, &output)
	return cmd
}

func (v *keyVerbs) rotateFile(ctx context.Context, path string, longest time.Duration, discard bool, output string, out io.Writer) error {
	now, end := time.Now(), time.Time{}
	if longest > 0 {
		end = now.Add(longest)
	}
	keys, err := accounts.Rotate(ctx, path, now, end, discard)
	if err != nil {
		return err
	}
	if output == "json" {
		return printJSON(out, keys)
	}
	return printKeys(out, keys)
}

func (v *keyVerbs) list() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Print the key that signs, and those that are still accepted",
		Example: "  " + v.program.Name + " token-key list",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			path, err := v.file()
			if err != nil {
				return err
			}
			keys, err := accounts.List(path)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), keys)
			}
			return printKeys(cmd.OutOrStdout(), keys)
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printKeys(out io.Writer, keys []accounts.KeyInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tALGORITHM\tUSE")
	for _, k := range keys {
		use := "verifies"
		switch {
		case k.Signs:
			use = "signs"
		case k.VerifiesUntil != nil:
			use += " until " + k.VerifiesUntil.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", k.ID, k.Algorithm, use)
	}
	return w.Flush()
}
