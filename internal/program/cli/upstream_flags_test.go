package cli

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/options"
)

// upstreamFlags are the server flags of k8s.io/apiserver.
func upstreamFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.NewRecommendedOptions("", nil).AddFlags(flags)
	options.NewServerRunOptions().AddUniversalFlags(flags)
	return flags
}

var (
	flagRow  = regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\| ([^|]*) \\| ([^|]*) \\|$")
	flagName = regexp.MustCompile("`--([a-z0-9-]+)")
)

// An upstream flag that the page does not mention is new in a Kubernetes release.
func TestUpstreamFlags_pageHasAll(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reference/upstream-flags.md")
	if err != nil {
		t.Fatal(err)
	}
	upstream, own := upstreamFlags(), serveFlags(t)
	var names []string
	for _, row := range flagRow.FindAllStringSubmatch(string(page), -1) {
		name, here, note := row[1], row[2], row[3]
		names = append(names, name)
		if upstream.Lookup(name) == nil {
			t.Errorf("--%s is no flag of upstream's any more", name)
		}
		same := own.Lookup(name)
		switch here {
		case "the same":
			if same == nil {
				t.Errorf("serve has no --%s", name)
			} else if same.Value.Type() != upstream.Lookup(name).Value.Type() && note == "" {
				t.Errorf("--%s is a %s, and upstream's a %s: say why", name, same.Value.Type(), upstream.Lookup(name).Value.Type())
			}
			continue
		case "none":
			if note == "" {
				t.Errorf("there is no reason against --%s", name)
			}
			if !slices.Contains(withoutCounterpart, name) {
				t.Errorf("--%s is not in withoutCounterpart", name)
			}
		default:
			if renamedFlags[name] == "" || !strings.Contains(here, "--"+renamedFlags[name]) {
				t.Errorf("--%s is --%s in renamedFlags, and %s in the page", name, renamedFlags[name], here)
			}
			others := flagName.FindAllStringSubmatch(here, -1)
			if len(others) == 0 {
				t.Errorf("--%s: %q names no flag", name, here)
			}
			for _, other := range others {
				if own.Lookup(other[1]) == nil {
					t.Errorf("--%s: serve has no --%s", name, other[1])
				}
			}
		}
		if same != nil {
			t.Errorf("serve has --%s, and the page says %s", name, here)
		}
	}
	if !slices.IsSorted(names) {
		t.Error("the flags are not in their order")
	}
	listed := map[string]bool{}
	for _, name := range names {
		if listed[name] {
			t.Errorf("--%s has two rows", name)
		}
		listed[name] = true
	}
	upstream.VisitAll(func(f *pflag.Flag) {
		if !listed[f.Name] {
			t.Errorf("--%s of upstream has no row: give it ours, or the reason against it (%s)", f.Name, f.Usage)
		}
	})
	if len(listed) < 100 {
		t.Errorf("the page has %d flags: %v", len(listed), slices.Sorted(maps.Keys(listed)))
	}
}

func TestForeignFlags_haveNoNamesOfOurs(t *testing.T) {
	t.Parallel()
	own := serveFlags(t)
	for _, name := range slices.Concat(withoutCounterpart, slices.Collect(maps.Keys(renamedFlags)),
		slices.Collect(maps.Keys(formerFlags))) {
		if own.Lookup(name) != nil {
			t.Errorf("serve has --%s", name)
		}
	}
	for name, hint := range formerFlags {
		for _, other := range regexp.MustCompile("--([a-z-]+[a-z])").FindAllStringSubmatch(hint, -1) {
			if own.Lookup(other[1]) == nil {
				t.Errorf("the hint of --%s names --%s, which serve does not have", name, other[1])
			}
		}
	}
}

func TestWithVerb_flagsWithoutAVerb_areOfServe(t *testing.T) {
	t.Parallel()
	extended := func(root *cobra.Command) {
		root.PersistentFlags().String("profile", "", "")
		root.AddCommand(&cobra.Command{Use: "seed", Run: func(*cobra.Command, []string) {}})
	}
	for args, want := range map[string]string{
		"":                              "",
		"--secure-port 8443":            "serve --secure-port 8443",
		"--secure-port=0 -v=7":          "serve --secure-port=0 -v=7",
		"-v 7 --etcd-servers x":         "serve -v 7 --etcd-servers x",
		"--secure-port 8443 --help":     "serve --secure-port 8443 --help",
		"--no-such-flag":                "serve --no-such-flag",
		"--secure-port 8443 serve":      "--secure-port 8443 serve",
		"--data-dir x storage verify":   "--data-dir x storage verify",
		"--version":                     "--version",
		"--help":                        "--help",
		"-h":                            "-h",
		"--profile x":                   "--profile x",
		"--profile x seed":              "--profile x seed",
		"serve --secure-port 8443":      "serve --secure-port 8443",
		"sreve --secure-port 8443":      "sreve --secure-port 8443",
		"-- serve":                      "-- serve",
		"-":                             "-",
		"__complete serve --secure-por": "__complete serve --secure-por",
	} {
		root := rootCommand(Program{Name: "shop", Extensions: []func(*cobra.Command){extended}})
		if got := strings.Join(withVerb(root, strings.Fields(args)), " "); got != want {
			t.Errorf("%q is %q, want %q", args, got, want)
		}
	}
}
