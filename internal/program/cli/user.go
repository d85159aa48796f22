package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/base/secretfile"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
)

// userVerbs is the state that the verbs below user share.
type userVerbs struct {
	program Program
	plan    plan.Plan
}

func userCommand(program Program) *cobra.Command {
	v := &userVerbs{program: program}
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Manage certificates and passwords of users of a standalone server",
		Long: `Issue and revoke client certificates for users of a standalone server, with the certificate
authority in its data directory, and set passwords with which users sign in. The server may be
running or stopped. An aggregated server does not have these users: it has the users of its
cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&v.plan.Options.DataDir, "data-dir", "data", "data directory of the server")
	flags.StringVar(
		&v.plan.Options.CertDir,
		"cert-dir",
		"",
		"directory of the certificates that the server creates (default: cert in the data directory)",
	)
	cmd.AddCommand(v.create(), v.list(), v.revoke(), v.passwd(), v.disable(), v.delete())
	return cmd
}

// needDir rejects options that name no directory for certificates, or something that is not a directory.
func (v *userVerbs) needDir() error {
	if v.plan.CertDir() == "" {
		return usage(errors.New("without a data directory, the server loses its certificate authority when it stops: use --data-dir " +
			"here and for serve"))
	}
	for _, option := range []struct{ flag, dir string }{{"--data-dir", v.plan.Options.DataDir}, {"--cert-dir", v.plan.Options.CertDir}} {
		if info, err := os.Stat(option.dir); err == nil && !info.IsDir() {
			return usage(fmt.Errorf("%s %s is not a directory", option.flag, option.dir))
		}
	}
	return nil
}

// users opens the user certificates of the server. It creates nothing.
func (v *userVerbs) users() (*certs.Users, error) {
	if err := v.needDir(); err != nil {
		return nil, err
	}
	return certs.OpenUsers(v.plan.CertDir(), nil), nil
}

// refusals marks rejections as usage errors; other errors stay failures.
func refusals(err error) error {
	if errors.As(err, new(certs.Refusal)) {
		return usage(err)
	}
	return err
}

// The forms of new credentials.
const (
	formKubeconfig = "kubeconfig"
	formPEM        = "pem"
	formPKCS12     = "p12"
)

// newUser holds the arguments of user create.
type newUser struct {
	certs.NewUser
	output, server, to, passwordFile string
	force                            bool
	password                         string
	cluster                          *clientcmdapi.Cluster
}

func (v *userVerbs) create() *cobra.Command {
	n := newUser{}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Issue a client certificate, as a kubeconfig, PEM or PKCS #12",
		Long: `Issue a client certificate, and print it with its key. The key is not stored anywhere else. A
user may have several certificates, such as one for each machine. The verb grants no permissions,
except that members of the group system:masters may do everything.

The kubeconfig has the URL of the administrator's kubeconfig in the data directory, or that of
--server. PEM output has the certificate, then the key. PKCS #12 output (p12) also has the
certificate authority, and is encrypted with a password.`,
		Example: fmt.Sprintf(`  # a kubeconfig for alice, with groups for RBAC bindings
  %[1]s user create alice --group staff --group on-call --to alice.kubeconfig

  # for a browser, or curl
  %[1]s user create alice --output p12 --password-file password --to alice.p12

  # for a program on another machine, valid for a week
  %[1]s user create robot --server https://api.example.com:8443 --lifetime 168h --to robot.kubeconfig`, v.program.Name),
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			n.Name = args[0]
			if cmd.Flags().Changed("lifetime") && n.Lifetime <= 0 {
				return usage(fmt.Errorf("--lifetime %s is not positive", n.Lifetime))
			}
			if cmd.Flags().Changed("group") && len(n.Groups) == 0 {
				return usage(errors.New("--group is empty"))
			}
			if err := n.check(cmd.OutOrStdout()); err != nil {
				return err
			}
			if err := v.needDir(); err != nil {
				return err
			}
			if n.output == formKubeconfig {
				var err error
				if n.cluster, err = certs.ServerOf(v.plan.Path("kubeconfig"), v.program.Name, n.server); err != nil {
					return refusals(err)
				}
			}
			return v.issue(cmd.Context(), &n, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&n.Groups, "group", nil, "group of the user; may be given several times")
	flags.DurationVar(&n.Lifetime, "lifetime", 0, "lifetime of the certificate, at most that of the certificate authority (default "+
		"8760h0m0s)")
	flags.StringVarP(&n.output, "output", "o", formKubeconfig, "kubeconfig, pem or p12")
	flags.StringVar(&n.server, "server", "", "URL of the server, for the kubeconfig (default: the URL in the administrator's kubeconfig)")
	flags.StringVar(&n.passwordFile, "password-file", "", "file with the password for p12; a trailing line break is ignored")
	flags.StringVar(&n.to, "to", "-", "file to write, readable only by its owner; - is standard output")
	flags.BoolVar(&n.force, "force", false, "replace an existing file")
	return cmd
}

// oneName returns the only argument of a verb.
func oneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usage(fmt.Errorf("the user name is missing; see %s --help", cmd.CommandPath()))
	case len(args) > 1:
		return usage(fmt.Errorf("unknown argument %q; see %s --help", args[1], cmd.CommandPath()))
	}
	return nil
}

// check performs all checks that are possible before anything is created, and reads the password.
func (n *newUser) check(out io.Writer) error {
	if err := n.Check(); err != nil {
		return refusals(err)
	}
	switch n.output {
	case formKubeconfig, formPEM, formPKCS12:
	default:
		return usage(fmt.Errorf("--output %q: choose %s, %s or %s", n.output, formKubeconfig, formPEM, formPKCS12))
	}
	switch {
	case n.output != formKubeconfig && n.server != "":
		return usage(fmt.Errorf("--server has no effect with --output %s: it sets the URL in a kubeconfig", n.output))
	case n.output != formPKCS12 && n.passwordFile != "":
		return usage(fmt.Errorf("--password-file requires --output %s, not %s", formPKCS12, n.output))
	case n.output == formPKCS12 && n.passwordFile == "":
		return usage(fmt.Errorf("--output %s requires a file with a password: use --password-file", formPKCS12))
	}
	if err := n.checkTarget(out); err != nil {
		return err
	}
	if n.output != formPKCS12 {
		return nil
	}
	var err error
	n.password, err = readPassword(n.passwordFile)
	if err != nil {
		return usage(fmt.Errorf("--password-file %s: %w", n.passwordFile, err))
	}
	return nil
}

// checkTarget rejects a target that cannot be written.
func (n *newUser) checkTarget(out io.Writer) error {
	switch {
	case n.to == "":
		return usage(errors.New("--to is empty: use a file, or - for standard output"))
	case n.to == "-" && n.force:
		return usage(errors.New("--force requires a file: use --to FILE"))
	case n.to == "-" && n.output == formPKCS12 && isTerminal(out):
		return usage(fmt.Errorf("--output %s is a binary format: use --to FILE", formPKCS12))
	}
	return nil
}

func readPassword(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = secretfile.Check(info, "a password")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return "", inner.Err
	}
	if err != nil {
		return "", err
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if password == "" {
		return "", errors.New("the password is empty")
	}
	return password, nil
}

func (n *newUser) encode(server string, c *certs.Credentials) ([]byte, error) {
	switch n.output {
	case formPEM:
		return c.PEM(), nil
	case formPKCS12:
		return c.PKCS12(n.password)
	}
	return c.Kubeconfig(server, n.cluster)
}

// target is the output for new credentials.
type target struct {
	where string // for messages
	write func(data []byte) error
	// discard removes an incomplete file.
	discard func()
}

// open creates the target. It runs before credentials are issued, so that an unwritable file fails first.
func (n *newUser) open(out io.Writer) (*target, error) {
	if n.to == "-" {
		return &target{"", func(data []byte) error {
			if _, err := out.Write(data); err != nil {
				return fmt.Errorf("write credentials: %w", err)
			}
			return nil
		}, func() {}}, nil
	}
	if _, err := os.Lstat(n.to); err == nil && !n.force {
		return nil, usage(fmt.Errorf("%s exists already: use --force to replace it", n.to))
	}
	file, err := atomicfile.Create(n.to, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write credentials: %w", err)
	}
	write := func(data []byte) error {
		_, err := file.Write(data)
		switch {
		case err != nil:
		case n.force:
			err = file.Replace()
		default:
			err = file.Place()
		}
		if err != nil {
			return fmt.Errorf("write credentials: %w", err)
		}
		return nil
	}
	return &target{", in " + n.to, write, file.Discard}, nil
}

// issue issues the certificate. It opens the target first, so that an unwritable file fails before a certificate
// exists.
func (v *userVerbs) issue(ctx context.Context, n *newUser, out, errOut io.Writer) error {
	target, err := n.open(out)
	if err != nil {
		return err
	}
	defer target.discard()
	if err := serve.MakeDataDir(ctx, v.plan.Options.DataDir, v.program.Name); err != nil {
		return err
	}
	issued, err := certs.OpenUsers(v.plan.CertDir(), nil).Create(n.NewUser)
	if err != nil {
		return refusals(err)
	}
	data, err := n.encode(v.program.Name, issued)
	if err != nil {
		return err
	}
	if err := target.write(data); err != nil {
		return err
	}
	if n.Privileged() {
		fmt.Fprintf(errOut, "warning: members of %s may do everything, including %s\n", certs.AdminGroup, n.Name)
	}
	fmt.Fprintf(
		errOut,
		"issued certificate %s to %s, valid until %s%s\n",
		issued.Serial(),
		n.Name,
		issued.Expires().Format(time.RFC3339),
		target.where,
	)
	return nil
}

func (v *userVerbs) list() *cobra.Command {
	var output string
	var passwords bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List issued certificates and their state",
		Long: `List the certificates of users, and the administrator's current one: user name, groups, serial
number, time of issue, and end of validity.

With --passwords, list the users who sign in by password instead, and the OAuth clients with
permissions of their own: name, groups, UID, and whether they are disabled.`,
		Example: fmt.Sprintf(`  %[1]s user list
  %[1]s user list --passwords
  %[1]s user list --output json | jq -r '.[] | select(.state == "valid") | .name'`, v.program.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if passwords {
				return v.listPasswords(cmd.OutOrStdout(), output)
			}
			if v.plan.Options.Login.UserFile != "" {
				return usage(fmt.Errorf("--%s requires --passwords", userFileFlag))
			}
			users, err := v.users()
			if err != nil {
				return err
			}
			all, err := users.List()
			if err != nil {
				return refusals(err)
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return printUsers(cmd.OutOrStdout(), all)
		},
	}
	outputFlag(cmd, &output)
	cmd.Flags().BoolVar(&passwords, "passwords", false, "list the users who sign in by password, instead of certificates")
	return v.userFileFlag(cmd)
}

func (v *userVerbs) revoke() *cobra.Command {
	var serial, output string
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke certificates of a user",
		Long: `Revoke all certificates of a user, or one. A running server rejects requests with revoked
certificates a moment later. You cannot undo a revocation.

The revocation list is ca.crl in the directory of certificates. The certificate authority signs
it, and openssl can read it.`,
		Example: fmt.Sprintf(`  # all certificates of alice
  %[1]s user revoke alice

  # the certificate of a lost laptop; user list prints the serial numbers
  %[1]s user revoke alice --serial 3f36d79c800272f05606bca79a5d8bf1`, v.program.Name),
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if cmd.Flags().Changed("serial") && serial == "" {
				return usage(errors.New("--serial is empty"))
			}
			users, err := v.users()
			if err != nil {
				return err
			}
			revoked, err := users.Revoke(cmd.Context(), certs.Revocation{Name: args[0], Serial: serial})
			if err != nil {
				return refusals(err)
			}
			if args[0] == certs.AdminUser {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: the administrator's kubeconfig no longer works: remove admin.crt and "+
					"admin.key in %s, and restart the server to create new ones\n", v.plan.CertDir())
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), revoked)
			}
			for _, c := range revoked {
				fmt.Fprintf(cmd.OutOrStdout(), "certificate %s of %s was revoked at %s\n", c.Serial, c.Name, c.Revoked.Format(time.RFC3339))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&serial, "serial", "", "serial number of the certificate to revoke (default: all certificates of the user)")
	outputFlag(cmd, &output)
	return cmd
}

func printUsers(out io.Writer, all []certs.Certificate) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tGROUPS\tSERIAL\tISSUED\tEXPIRES\tSTATE")
	for _, c := range all {
		state := c.State
		if c.Revoked != nil {
			state += " " + c.Revoked.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, strings.Join(c.Groups, ","), c.Serial,
			c.Issued.Format(time.RFC3339), c.Expires.Format(time.RFC3339), state)
	}
	return w.Flush()
}
