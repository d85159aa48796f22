package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
)

const userFileFlag = "user-file"

// loginFlags declares the flags for signing in.
func loginFlags(flags *pflag.FlagSet, o *config.LoginOptions) {
	flags.StringVar(&o.UserFile, userFileFlag, "", "file with users who sign in by password, OAuth clients and login providers, in "+
		"the format of user passwd; reloaded when it changes (default: users in the data directory)")
	flags.StringVar(
		&o.PublicURL,
		"login-public-url",
		"",
		"https URL at which users reach the server, without a path (default: the host of each request)",
	)
	flags.DurationVar(&o.TokenLifetime, "login-token-lifetime", 0, "lifetime of a user's access token (default 15m)")
	flags.DurationVar(&o.IdleTimeout, "login-idle-timeout", 0, "time after which an unused session of a user expires (default 24h)")
	flags.DurationVar(&o.SessionLifetime, "login-session-lifetime", 0, "maximum lifetime of a user's session (default 168h)")
}

// userFile returns the path of the user file, which holds users with passwords.
func (v *userVerbs) userFile() (string, error) {
	if path := v.plan.Options.Login.UserFile; path != "" {
		return path, nil
	}
	if v.plan.Options.DataDir == "" {
		return "", usage(fmt.Errorf("no file of users: without a data directory, set --%s", userFileFlag))
	}
	return v.plan.Path(login.FileName), v.needDir()
}

// edit applies a change to the user file.
func (v *userVerbs) edit(cmd *cobra.Command, path string, change func(*login.File) error) error {
	if v.plan.Options.Login.UserFile == "" {
		if err := serve.MakeDataDir(cmd.Context(), v.plan.Options.DataDir, v.program.Name); err != nil {
			return err
		}
	}
	err := login.Edit(cmd.Context(), path, change)
	if errors.As(err, new(login.Refusal)) {
		return usage(err)
	}
	return err
}

func (v *userVerbs) userFileFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().
		StringVar(&v.plan.Options.Login.UserFile, userFileFlag, "", "path of the file of users, if the server was started with one "+
			"(default: users in the data directory)")
	return cmd
}

func (v *userVerbs) passwd() *cobra.Command {
	var groups []string
	var passwordFile string
	cmd := &cobra.Command{
		Use:   "passwd NAME",
		Short: "Set the password of a user, and create the user if it does not exist",
		Long: `Set the password with which a user signs in, at /oauth/token or on a page, and create the user if
it does not exist. On a terminal, the verb prompts twice for the password; otherwise it reads the
first line of standard input. The file holds a bcrypt hash of the password. All sessions of the
user end, and a disabled user becomes enabled.

A running server applies the change at once.`,
		Example: fmt.Sprintf(`  %[1]s user passwd alice --group staff

  # in a script
  %[1]s user passwd robot --password-file password`, v.program.Name),
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := v.userFile()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("group") && len(groups) == 0 {
				groups = []string{} // an empty list clears the groups; nil leaves them
			}
			if err := errors.Join(login.CheckName("user name", args[0]), login.CheckGroups(groups)); err != nil {
				return usage(err)
			}
			if args[0] == certs.AdminUser {
				return usage(fmt.Errorf("user name %q is reserved for the administrator: choose another", args[0]))
			}
			password, err := newPassword(cmd, passwordFile)
			if err != nil {
				return err
			}
			hash, err := login.Hash(password)
			if err != nil {
				return usage(err)
			}
			made := false
			if err := v.edit(cmd, path, func(f *login.File) (err error) {
				made, err = f.SetPassword(args[0], hash, groups)
				return err
			}); err != nil {
				return err
			}
			if slices.Contains(groups, certs.AdminGroup) {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: members of %s may do everything, including %s\n", certs.AdminGroup, args[0])
			}
			what := "changed the password of"
			if made {
				what = "made the user"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s in %s\n", what, args[0], path)
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&groups, "group", nil, "group of the user, instead of the current groups; may be given several times; "+
		"an empty value removes all groups")
	cmd.Flags().StringVar(&passwordFile, "password-file", "", "file with the password; a trailing line break is ignored")
	return v.userFileFlag(cmd)
}

// newPassword reads a password from a file. Without a file it reads from a terminal, twice and without echo, or
// else from standard input.
func newPassword(cmd *cobra.Command, file string) (string, error) {
	if file != "" {
		password, err := readPassword(file)
		if err != nil {
			return "", usage(fmt.Errorf("--password-file %s: %w", file, err))
		}
		return password, nil
	}
	in, terminal := cmd.InOrStdin().(*os.File)
	if !terminal || !term.IsTerminal(int(in.Fd())) {
		line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 4<<10)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read the password: %w", err)
		}
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			return "", usage(errors.New("no password on standard input: type it on a terminal, or use --password-file"))
		}
		return line, nil
	}
	var typed [2][]byte
	for i, prompt := range []string{"Password: ", "Once more: "} {
		fmt.Fprint(cmd.ErrOrStderr(), prompt)
		var err error
		typed[i], err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(cmd.ErrOrStderr())
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
	}
	if !bytes.Equal(typed[0], typed[1]) {
		return "", usage(errors.New("the passwords do not match: nothing was changed"))
	}
	return string(typed[0]), nil
}

// listedUser is a user or a client of a user file, without its secrets.
type listedUser struct {
	Name   string   `json:"name"`
	UID    string   `json:"uid,omitempty"`
	Groups []string `json:"groups"`
	State  string   `json:"state"`
}

// listPasswords prints the users and clients of the user file.
func (v *userVerbs) listPasswords(out io.Writer, output string) error {
	path, err := v.userFile()
	if err != nil {
		return err
	}
	file, err := login.ReadUsers(path)
	if err != nil {
		return err
	}
	all := []listedUser{}
	add := func(name, uid string, groups []string, disabled bool) {
		state := "enabled"
		if disabled {
			state = "disabled"
		}
		all = append(all, listedUser{name, uid, append([]string{}, groups...), state})
	}
	for _, u := range file.Users {
		add(u.Name, u.UID, u.Groups, u.Disabled)
	}
	for _, c := range file.Clients {
		if len(c.Groups) > 0 {
			add(c.Caller(), "", c.Groups, c.Disabled)
		}
	}
	slices.SortFunc(all, func(a, b listedUser) int { return strings.Compare(a.Name, b.Name) })
	if output == "json" {
		return printJSON(out, all)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tGROUPS\tUID\tSTATE")
	for _, u := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.Name, strings.Join(u.Groups, ","), u.UID, u.State)
	}
	return w.Flush()
}

// existing returns a verb that changes a user of the file. An unknown user is an error.
func (v *userVerbs) existing(use, done string, cmd *cobra.Command, change func(f *login.File, u *login.User)) *cobra.Command {
	cmd.Use, cmd.Args = use+" NAME", oneName
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := v.userFile()
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Errorf("file of users %s does not exist: create it with user passwd", path))
		}
		err = v.edit(cmd, path, func(f *login.File) error {
			u := f.User(args[0])
			if u == nil {
				return login.Refusal(fmt.Sprintf("%s has no user %q: to revoke certificates, use user revoke", path, args[0]))
			}
			change(f, u)
			return nil
		})
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s in %s\n", done, args[0], path)
		}
		return err
	}
	return v.userFileFlag(cmd)
}

func (v *userVerbs) disable() *cobra.Command {
	return v.existing("disable", "disabled", &cobra.Command{
		Short: "Disable a user who signs in by password, and reject the user's tokens",
		Long: `Disable a user who signs in by password, and reject the user's tokens. A running server applies
the change a moment later. A new password enables the user again. Certificates of the user stay
valid: revoke them with user revoke.`,
		Example: "  " + v.program.Name + " user disable alice",
	}, func(_ *login.File, u *login.User) { u.Disabled = true })
}

func (v *userVerbs) delete() *cobra.Command {
	return v.existing("delete", "deleted", &cobra.Command{
		Short: "Delete a user who signs in by password, and reject the user's tokens",
		Long: `Delete a user who signs in by password, and reject the user's tokens. A running server applies
the change a moment later. A user created later with the same name has a different UID.
Certificates of the user stay valid: revoke them with user revoke.`,
		Example: "  " + v.program.Name + " user delete alice",
	}, func(f *login.File, u *login.User) {
		f.Users = slices.DeleteFunc(f.Users, func(other login.User) bool { return other.Name == u.Name })
	})
}

// loginDescription is describe's output about signing in.
type loginDescription struct {
	UserFile        string `json:"userFile"`
	TokenLifetime   string `json:"tokenLifetime"`
	IdleTimeout     string `json:"idleTimeout"`
	SessionLifetime string `json:"sessionLifetime"`
}

func describeLogin(p *plan.Plan) *loginDescription {
	o := p.Options.Login
	if o.UserFile == "" || p.UsersAwaited {
		return nil
	}
	return &loginDescription{o.UserFile, o.TokenLifetime.String(), o.IdleTimeout.String(), o.SessionLifetime.String()}
}
