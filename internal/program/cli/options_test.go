package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
)

// field matches the names of fields in messages. Fields of a driver or of a snapshot writer are preceded by its
// name.
var field = regexp.MustCompile(`\b(Options|ToolOptions|CopyOptions|LeaderElection|Config)(\.[A-Z][A-Za-z]*)+`)

func TestFlagOf_hasEveryFieldInMessages(t *testing.T) {
	t.Parallel()
	seen := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "cli" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Error(err)
			}
			if field.MatchString(text) {
				seen++
			}
			// Only etcd's flags and its snapshots contain the name of a storage.
			said := flagNames(regexp.MustCompile(`%(\[2\])?s`).ReplaceAllString(text, "etcd"))
			if left := field.FindString(said); left != "" {
				t.Errorf("%s: %q names %s, which has no flag in flagOf", files.Position(literal.Pos()), text, left)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Error("no message names a field")
	}
}

func TestFlagOf_flagsExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		note := func(f *pflag.Flag) { there["--"+f.Name] = true }
		cmd.Flags().VisitAll(note)
		cmd.PersistentFlags().VisitAll(note)
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand(Program{Name: "shop"}))
	for _, f := range flagOf {
		if name, _, _ := strings.Cut(f.flag, " "); !there[name] {
			t.Errorf("%s: no verb has the flag %s", f.field, name)
		}
	}
}

func TestFlagNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Options.ListenInsecure and Options.Listen":                "--insecure-port and --secure-port",
		"LeaderElection.Namespace, LeaderElection.Name":            "--leader-elect-resource-namespace, --leader-elect-resource-name",
		"Config.StorageSize, Config.Storage etcd":                  "--storage-size, --storage etcd",
		"with CopyOptions.SnapshotOf etcd, or CopyOptions.Replace": "with --to etcd-snapshot=FILE, or --replace",
		"an object names no field":                                 "an object names no field",
	} {
		if got := flagNames(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestZeroIsNone(t *testing.T) {
	for _, test := range []struct {
		given, refused string
		want           time.Duration
	}{
		{"5m", "", 5 * time.Minute},
		{"0", "", -1},
		{"-1s", "--keep -1s is negative", -time.Second},
	} {
		var value time.Duration
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.DurationVar(&value, "keep", time.Hour, "")
		if err := flags.Parse([]string{"--keep", test.given}); err != nil {
			t.Fatal(err)
		}
		err := zeroIsNone(flags, "keep", &value)
		if value != test.want || (err == nil) != (test.refused == "") || err != nil && err.Error() != test.refused {
			t.Errorf("--keep %s: %v, %v", test.given, value, err)
		}
	}
}

func TestResolve_defaultDataDir(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"": "data",
		"--aggregated --self-certify --service-namespace shops":                                   "data",
		"--aggregated --storage memory":                                                           "data", // of its certificate
		"--aggregated --storage memory --self-certify --service-namespace shops":                  "",
		"--aggregated --storage memory --self-certify --service-namespace shops --data-dir given": "given",
	} {
		options, storage := config.Options{}, storageOptions{}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		storageFlags(flags, &storage, &options)
		clusterFlags(flags, &options)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := clusterOptions(flags, &options, &define.Server{}); err != nil {
			t.Fatal(err)
		}
		p, err := storage.resolve(&definition.Definition{Server: &define.Server{Name: "shop", Groups: []define.Group{{Name: "shop.example.com"}}}}, options)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if got := p.Options.DataDir; got != want {
			t.Errorf("%s: the data directory is %q, want %q", args, got, want)
		}
	}
}

func TestClusterOptions_standalone_areRefused(t *testing.T) {
	t.Parallel()
	flagsOf := func() (*pflag.FlagSet, *config.Options) {
		flags, options := pflag.NewFlagSet("", pflag.ContinueOnError), &config.Options{}
		clusterFlags(flags, options)
		return flags, options
	}
	all, _ := flagsOf()
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name == aggregatedFlag || slices.Contains(clusterKubeconfigs, f.Name) {
			return
		}
		flags, options := flagsOf()
		value := map[string]string{"bool": "true", "duration": "10s"}[f.Value.Type()]
		if err := flags.Set(f.Name, value); err != nil {
			t.Fatal(err)
		}
		want := "--" + f.Name + " requires an aggregated server: add --aggregated"
		if err := clusterOptions(flags, options, &define.Server{}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
	flags, options := flagsOf()
	if err := clusterOptions(flags, options, &define.Server{}); err != nil || !reflect.DeepEqual(options, &config.Options{}) {
		t.Errorf("without flags: %v, %+v", err, options)
	}
}

func TestClusterOptions_kubeconfig_aggregates(t *testing.T) {
	t.Parallel()
	for _, name := range clusterKubeconfigs {
		for _, test := range []struct {
			aggregated string
			definition define.Server
			refused    string
		}{
			{"", define.Server{}, ""},
			{"true", define.Server{}, ""},
			{"false", define.Server{}, "stands alone because of --aggregated=false: leave the flag out, or leave out " +
				"--aggregated=false, and use"},
			{"", define.Server{Plane: &define.Plane{}}, "stands alone because it has a control plane: leave the flag out, and use the " +
				"kubeconfig"},
		} {
			flags, options := pflag.NewFlagSet("", pflag.ContinueOnError), &config.Options{}
			clusterFlags(flags, options)
			args := []string{"--" + name, "kubeconfig"}
			if test.aggregated != "" {
				args = append(args, "--aggregated="+test.aggregated)
			}
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			err := clusterOptions(flags, options, &test.definition)
			if test.refused == "" {
				if err != nil || !options.Aggregated {
					t.Errorf("%v: %v, aggregated %v", args, err, options.Aggregated)
				}
				continue
			}
			if err == nil || !strings.HasPrefix(err.Error(), "--"+name+" ") || !strings.Contains(err.Error(), test.refused) ||
				exitCode(err) != 2 {
				t.Errorf("%v: %v, want %s", args, err, test.refused)
			}
		}
	}
}
