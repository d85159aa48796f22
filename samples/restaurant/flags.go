package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addAliases adds to serve the flags of the server that this one replaces, if Annex has them under other names. The
// flags --etcd-servers, --request-timeout, --token-auth-file, --unrestricted-update and --authn-allow-localhost have
// the same names in Annex.
func addAliases(root *cobra.Command) {
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		panic(err) // every server has this verb
	}
	flags := serve.Flags()
	flags.Var(&alias{flags, "string", map[string][]setting{
		"etcd": {{"storage", "etcd"}},
		"file": {{"storage", "files"}},
	}}, "backend", "etcd or file: as --storage=etcd and --storage=files")
	path := &rootPath{flags: flags}
	flags.Var(path, "file-rootpath", "directory of certificates, kubeconfig and the backend file, as --data-dir; next to --data-dir, "+
		"as --files-dir")
	boolean(flags, "kubectl-disabled", "write no kubeconfig, and refuse kubectl: as --no-kubeconfig --refuse-user-agents=kubectl",
		[]setting{{"no-kubeconfig", "true"}, {"refuse-user-agents", "kubectl"}})
	boolean(flags, "kubectl-ephemeral-token", "the kubeconfig holds a short-lived token: as --ephemeral-token",
		[]setting{{"ephemeral-token", "true"}})
	serve.PreRunE = func(*cobra.Command, []string) error {
		if err := path.apply(); err != nil {
			return err
		}
		if flags.Changed("backend") && !flags.Changed("insecure-port") {
			return flags.Set("insecure-port", insecurePort)
		}
		return nil
	}
}

const (
	// insecurePort is the port of plain HTTP of the server that this one replaces.
	insecurePort = "6080"
	// publicPassword is its password of the administrator's certificate. It protects nothing: the key is in a file beside
	// the certificate, which only its owner can read.
	publicPassword = "P@ssw0rd"
)

// rootPath is the value of --file-rootpath: the folder in which the server that this one replaces has everything.
type rootPath struct {
	flags   *pflag.FlagSet
	path    string
	applied bool // the command line is complete
}

// String implements pflag.Value.
func (r *rootPath) String() string { return r.path }

// Type implements pflag.Value.
func (r *rootPath) Type() string { return "string" }

// Set implements pflag.Value.
func (r *rootPath) Set(path string) error {
	if path == "" {
		return fmt.Errorf("it is empty")
	}
	r.path = path
	if r.applied { // the flag is in the file of --config, which is read later
		return r.apply()
	}
	return nil
}

// apply sets the flags that the path stands for. It writes the password of client.p12 into the folder unless the command
// line names another.
func (r *rootPath) apply() error {
	r.applied = true
	switch {
	case r.path == "":
		return nil
	case r.flags.Changed("data-dir"):
		return r.flags.Set("files-dir", r.path)
	}
	if err := r.flags.Set("data-dir", r.path); err != nil {
		return err
	}
	if r.flags.Changed("pkcs12-password-file") || r.flags.Changed("no-kubeconfig") {
		return nil
	}
	// The administrator's certificate is in this folder, too.
	password := filepath.Join(r.path, "cert", "pkcs12-password")
	if err := os.MkdirAll(filepath.Dir(password), 0o700); err != nil {
		return fmt.Errorf("--file-rootpath: %w", err)
	}
	if err := os.WriteFile(password, []byte(publicPassword+"\n"), 0o600); err != nil {
		return fmt.Errorf("--file-rootpath: %w", err)
	}
	return r.flags.Set("pkcs12-password-file", password)
}

// boolean adds a flag that may be given without a value. False is the default, and sets nothing.
func boolean(flags *pflag.FlagSet, name, usage string, settings []setting) {
	flags.Var(&alias{flags, "bool", map[string][]setting{"true": settings, "false": nil}}, name, usage)
	flags.Lookup(name).NoOptDefVal = "true"
}

// setting is a value for another flag; empty means the given value.
type setting struct{ flag, value string }

// alias is a flag whose values set other flags; the empty value stands for all values.
type alias struct {
	flags  *pflag.FlagSet
	kind   string
	values map[string][]setting
}

// String implements pflag.Value. An alias has no default of its own.
func (a *alias) String() string { return "" }

// Type implements pflag.Value.
func (a *alias) Type() string { return a.kind }

// Set implements pflag.Value.
func (a *alias) Set(value string) error {
	settings, ok := a.values[value]
	if !ok {
		settings, ok = a.values[""]
	}
	if !ok || value == "" {
		known := slices.DeleteFunc(slices.Sorted(maps.Keys(a.values)), func(v string) bool { return v == "" })
		if len(known) == 0 {
			return fmt.Errorf("it is empty")
		}
		return fmt.Errorf("choose %s", strings.Join(known, " or "))
	}
	for _, s := range settings {
		if s.value == "" {
			s.value = value
		}
		if err := a.flags.Set(s.flag, s.value); err != nil {
			return err
		}
	}
	return nil
}
