package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/annexapi/annex/internal/program/definition"
)

// serveFlags returns serve's flags after parsing args.
func serveFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	cmd := serveCommand(Program{Name: "shop"})
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cmd.Flags()
}

func TestReadConfig(t *testing.T) {
	t.Parallel()
	flags := serveFlags(t, "--request-timeout=5s", "--v=3", "--controllers=a")
	file := `
# a comment
bind-address: 0.0.0.0
secure-port: 6443
aggregated: true
request-timeout: 1m
shutdown-delay-duration: 3s
goaway-chance: 0.01
audit-webhook-batch-throttle-qps: 5
memory-budget: 512Mi
object-cache-size: 1000
verbosity: 7
etcd-servers: &servers [https://a:2379, "https://b:2379"]
cors-allowed-origins: ['^https://a,b$', '//"c"$']
controllers: ['*', -b]
tls-curve-preferences: [29, 23]
tls-sni-cert-key: ["a.crt,a.key:a.example.com", "b.crt,b.key"]
requestheader-allowed-names: []
requestheader-group-headers: *servers
storage-of: {leases.example.com: memory, "odd,one": 'a"b', c: d=e}
client-ca-file: ""
`
	if err := setFlags(flags, nil, []byte(file)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"bind-address": "0.0.0.0", "secure-port": "6443", "aggregated": "true", "shutdown-delay-duration": "3s", "goaway-chance": "0.01",
		"audit-webhook-batch-throttle-qps": "5",
		"memory-budget":                    "512Mi", "object-cache-size": "1k", "etcd-servers": "[https://a:2379,https://b:2379]",
		"tls-curve-preferences": "[29,23]",
		"tls-sni-cert-key":      "[a.crt,a.key:a.example.com;b.crt,b.key]", "requestheader-allowed-names": "[]",
		"requestheader-group-headers": "[https://a:2379,https://b:2379]", "client-ca-file": "",
		// These were given on the command line.
		"request-timeout": "5s", "verbosity": "3", "controllers": "[a]",
		// This one is in neither place.
		"insecure-port": "0",
	} {
		f := flags.Lookup(name)
		if f.Value.String() != want {
			t.Errorf("%s is %s, want %s", name, f.Value, want)
		}
		if f.Changed != (name != "insecure-port" && name != "verbosity") {
			t.Errorf("%s: changed %t", name, f.Changed)
		}
	}
	if origins, err := flags.GetStringSlice(
		"cors-allowed-origins",
	); err != nil || len(origins) != 2 || origins[0] != "^https://a,b$" ||
		origins[1] != `//"c"$` {
		t.Errorf("%q, %v", origins, err)
	}
	if of, err := flags.GetStringToString(
		"storage-of",
	); err != nil || len(of) != 3 || of["c"] != "d=e" || of["leases.example.com"] != "memory" ||
		of["odd,one"] != `a"b` {
		t.Errorf("%q, %v", of, err)
	}
	for _, empty := range []string{"", "# nothing\n", "null\n", "{}"} {
		if err := setFlags(serveFlags(t), nil, []byte(empty)); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

// Every flag's type must be expressible in a file.
func TestReadConfig_everyServeFlag(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"bool":            "true",
		"int":             "3",
		"int32":           "3",
		"int64":           "3",
		"float32":         "0.5",
		"float64":         "0.5",
		"string":          "text",
		"duration":        "3s",
		"quantity":        "3Mi",
		"stringSlice":     "[a, b]",
		"stringArray":     `["a,b", c]`,
		"int32Slice":      "[29]",
		"stringToString":  "{a: b}",
		"mapStringBool":   "{A: true, B: false}",
		"mapStringString": "{api/v1: true, api/all: false}",
		"namedCertKey":    `["a.crt,a.key"]`,
	}
	serveFlags(t).VisitAll(func(f *pflag.Flag) {
		if f.Name == configFlag || f.Name == "help" {
			return
		}
		value, known := values[f.Value.Type()]
		if !known {
			t.Errorf("--%s is of the type %s: can a file hold it?", f.Name, f.Value.Type())
			return
		}
		flags := serveFlags(t)
		switch f.Name {
		case "log-format":
			value = "json"
		case "history-of":
			value = "{a: 720h+5}"
		}
		if err := setFlags(flags, nil, []byte(f.Name+": "+value)); err != nil || !flags.Lookup(f.Name).Changed {
			t.Errorf("%s: %s: %v", f.Name, value, err)
		}
	})
}

func TestReadConfig_mistakes(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"secure-prot: 1":                                 "line 1: secure-prot: unknown flag, or a flag that the file cannot set",
		"config: other.yaml":                             "line 1: config: unknown flag",
		"help: true":                                     "line 1: help: unknown flag",
		"<<: {secure-port: 1}":                           "line 1: <<: unknown flag",
		"\nsecure-port: '8443'":                          `line 2: secure-port: got "8443", want a whole number`,
		"secure-port: 1.5":                               `secure-port: got "1.5", want a whole number`,
		"secure-port: 99999999999999999999":              "line 1: secure-port: ",
		"secure-port: [1]":                               "secure-port: got a list, want a whole number",
		"secure-port:":                                   "secure-port: got nothing, want a whole number",
		"profiling: yes":                                 `profiling: got "yes", want true or false`,
		"goaway-chance: much":                            `goaway-chance: got "much", want a number`,
		"log-format: xml":                                "line 1: log-format: choose text or json",
		"bind-address: 10":                               `bind-address: got "10", want a text`,
		"request-timeout: 10":                            `request-timeout: got "10", want a duration such as 30s`,
		"request-timeout: soon":                          `line 1: request-timeout: time: invalid duration "soon"`,
		"memory-budget: lots":                            "line 1: memory-budget: quantities must match",
		"memory-budget: 1.5":                             `memory-budget: got "1.5", want a quantity such as 512Mi`,
		"etcd-servers: https://a":                        `etcd-servers: got "https://a", want a list`,
		"etcd-servers: [https://a, 3]":                   `etcd-servers: [1]: got "3", want a text`,
		"tls-curve-preferences: [P256]":                  `tls-curve-preferences: [0]: got "P256", want a whole number`,
		"tls-sni-cert-key: [a.crt]":                      "line 1: tls-sni-cert-key: expected comma separated certificate and key file paths",
		"feature-gates: {A: on}":                         `feature-gates: A: got "on", want true or false`,
		"storage-of: a=b":                                `storage-of: got "a=b", want a mapping`,
		"storage-of: {a: {b: c}}":                        "storage-of: a: got a mapping, want a text",
		"storage: memory\nsecure-port: 0\nstorage: etcd": "line 3: storage: it is in line 1, too",
		"a: b\nsecure-port: x":                           "line 1: a: unknown flag, or a flag that the file cannot set; line 2: secure-port: ",
		"- a":                                            "line 1: got a list, want a map from flag names to values",
		"text":                                           `line 1: got "text", want a map`,
		"storage: memory\n---\nstorage: memory":          "line 2: the file must have only one document",
		"storage: [":                                     "line 1: ",
		"\tstorage: a":                                   "found character that cannot start any token",
	} {
		err := setFlags(serveFlags(t), nil, []byte(file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
	}
}

func TestServe_configFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "serve.yaml")
	if err := os.WriteFile(file, []byte("data-dir: "+filepath.Join(dir, "data")+"\nsecure-port: 99999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"shop: --secure-port 99999 is not between 0 and 65535\n": {"serve", "--config", file},
		"shop: --config: open " + filepath.Join(dir, "missing") +
			": no such file or directory\n": {"serve", "--config", filepath.Join(dir, "missing")},
		"shop: --secure-port 100000 is not between 0 and 65535\n": {"serve", "--config", file,
			"--secure-port", "100000"},
	} {
		var out, errOut bytes.Buffer
		code := Run(context.Background(), Program{Name: "shop", Define: func() (*definition.Definition, error) { return &definition.Definition{}, nil }}, args, &out, &errOut)
		if code != 2 || errOut.String() != want {
			t.Errorf("%v: %d, %s", args, code, &errOut)
		}
	}
}
