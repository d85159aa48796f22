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
	flags.StringArrayVar(&a.Issuers, "service-account-issuer", nil, "issuer of service account tokens, usually the https URL at which other "+
		"programs reach the server; may be given several times, and new tokens get the first (default https://NAME of the server)")
	flags.StringSliceVar(&o.APIAudiences, "api-audiences", nil, "identifiers of the API; the server accepts service account tokens "+
		"that have one of them as audience (default: the issuers)")
	flags.StringVar(&a.SigningKeyFile, signingKeyFlag, "", "file with the private key that signs service account tokens (PEM), for "+
		"servers that share the key (default: service-account.key beside the certificates; the server creates the file)")
	flags.StringArrayVar(
		&a.KeyFiles,
		"service-account-key-file",
		nil,
		"file with more keys that verify service account tokens (PEM); may be given several times",
	)
	flags.StringVar(&a.JWKSURI, "service-account-jwks-uri", "", "https URL of the public keys, published at "+
		"/.well-known/openid-configuration (default: the server's own)")
	flags.DurationVar(
		&a.MaxTokenExpiration,
		maxTokenExpirationFlag,
		0,
		"maximum lifetime of service account tokens; 0 sets no limit (default 8760h0m0s)",
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
		Short: "Rotate the key that signs service account tokens",
		Long: `Rotate the key that signs the service account tokens of a standalone server. The server may be
running or stopped. An aggregated server uses the service accounts of its cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	o := &v.plan.Options
	flags.StringVar(&o.DataDir, "data-dir", "data", "data directory of the server")
	flags.StringVar(&o.CertDir, "cert-dir", "", "directory of the certificates that the server creates (default: cert in the data directory)")
	flags.StringVar(&o.ServiceAccounts.SigningKeyFile, signingKeyFlag, "", "path of the key file, if the server was started with one "+
		"(default: "+
		"service-account.key beside the certificates)")
	cmd.AddCommand(v.rotate(), v.list())
	return cmd
}

// file returns the path of the key file, which must exist.
func (v *keyVerbs) file() (string, error) {
	path, _ := v.plan.SigningKey()
	if path == "" {
		return "", usage(errors.New("without a data directory, the server loses its key when it stops: use --data-dir here and for serve"))
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", usage(fmt.Errorf("key file %s does not exist: start the server once, or set --%s", path, signingKeyFlag))
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
		Short: "Sign with a new key, and accept tokens of the old key until they expire",
		Long: `Sign with a new key. This deletes the private part of the old key. The public part stays beside
the new key, and servers accept tokens of the old key until the last of these tokens expires,
after the maximum lifetime of tokens. Running servers read the changed file at once.`,
		Example: fmt.Sprintf(`  %[1]s token-key rotate

  # the key was stolen: reject all existing tokens
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
		DurationVar(&longest, maxTokenExpirationFlag, plan.TokenExpiration, "maximum lifetime of tokens, the same value as for serve; "+
			"0 keeps the old key forever")
	cmd.Flags().BoolVar(&discard, "discard-old", false, "delete the old keys; servers reject all existing tokens at once")
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
		Short:   "Print the key that signs tokens, and the old keys that still verify tokens",
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
