// Command suites runs the tests of other projects against the programs of annex envtest, unchanged, and prints a table. Sources
// come from the module proxy, at pinned versions.
//
//	suites [-only REGEXP] [-personality like-cluster]    against the programs of annex envtest
//	suites [-only REGEXP] -assets DIR                    against other programs, such as a real kube-apiserver and etcd
//	suites -start 10 -assets DIR                         measures the starts of both instead, in turn
//
// Its exit code is 1 if a test failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, usage io.Writer) (err error) {
	flags := flag.NewFlagSet("suites", flag.ContinueOnError)
	flags.SetOutput(usage)
	only := flags.String("only", "", "the suites to run, as a regular `expression` for their names")
	assets := flags.String("assets", "", "a `folder` with kube-apiserver, etcd and kubectl to run the suites against instead")
	made := flags.String("ours", "", "a `folder` that annex envtest has made (default: one of a tool that is built)")
	personality := flags.String("personality", "like-envtest", "the personality of annex envtest")
	logs := flags.String("logs", "", "a `folder` for what the tests print (default: shown for tests that fail)")
	rounds := flags.Int("start", 0, "measure this many starts of the programs of annex envtest and of -assets, and run no suite")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	work, err := os.MkdirTemp("", "annex-suites-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(work)) }()
	if *logs == "" {
		*logs = work
	}
	if err := os.MkdirAll(*logs, 0o755); err != nil {
		return fmt.Errorf("-logs: %w", err)
	}
	theirs := programs{name: "the programs of " + *assets, dir: *assets}
	if *rounds == 0 && *assets != "" {
		if theirs.dir, err = copied(*assets, filepath.Join(work, "assets")); err != nil {
			return err
		}
		return runSuites(ctx, work, *logs, theirs, wanted)
	}
	var target programs
	if *made == "" {
		target, err = ours(ctx, work, *personality)
	} else {
		target = programs{name: "annex envtest, " + filepath.Base(*made), personality: filepath.Base(*made)}
		target.dir, err = filepath.Abs(*made)
	}
	if err != nil {
		return err
	}
	if *rounds > 0 {
		return compareStarts(ctx, target, theirs, *rounds)
	}
	return runSuites(ctx, work, *logs, target, wanted)
}

// programs is a folder with a kube-apiserver, an etcd and a kubectl.
type programs struct {
	name, dir string
	// personality is empty for programs of others.
	personality string
}

// ours builds the tool and makes its folder of programs.
func ours(ctx context.Context, work, personality string) (programs, error) {
	tool := filepath.Join(work, "annex")
	if _, err := output(exec.CommandContext(ctx, "go", "build", "-o", tool, "github.com/annexapi/annex/cmd/annex")); err != nil {
		return programs{}, err
	}
	dir, err := output(exec.CommandContext(ctx, tool, "envtest", "--dir", filepath.Join(work, "assets"), "--personality", personality))
	return programs{"annex envtest, " + personality, strings.TrimSpace(dir), personality}, err
}

// copied makes a folder with the programs of another one: processes are recognized by their files, and others may use the same
// programs at the same time.
func copied(from, to string) (string, error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		program, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return "", fmt.Errorf("-assets: %w", err)
		}
		if err := os.WriteFile(filepath.Join(to, name), program, 0o755); err != nil {
			return "", err
		}
	}
	return to, nil
}

func runSuites(ctx context.Context, work, logs string, target programs, wanted *regexp.Regexp) error {
	if !slices.ContainsFunc(suites, func(s suite) bool { return wanted.MatchString(s.name()) }) {
		return fmt.Errorf("-only %s: no suite has such a name", wanted)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "suite\tpassed\tfailed\tskipped\twall\tCPU\tkube-apiserver\n")
	var all results
	for _, s := range suites {
		if !wanted.MatchString(s.name()) {
			continue
		}
		fmt.Printf("== %s, %s\n", s.name(), target.name)
		got, err := s.run(ctx, filepath.Join(work, "suite"), logs, target)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		if err := removeAll(filepath.Join(work, "suite")); err != nil {
			return err
		}
		fmt.Fprintln(table, s.name()+"\t"+got.row())
		all.add(got)
	}
	fmt.Printf("\n%s:\n", target.name)
	fmt.Fprintln(table, "all\t"+all.row())
	if err := table.Flush(); err != nil {
		return err
	}
	if all.failed > 0 {
		return fmt.Errorf("%d tests failed", all.failed)
	}
	return nil
}

// output runs a command, whose output is part of the error if it fails.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", cmd, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// removeAll removes a folder whose subfolders may be read-only, as those of modules are.
func removeAll(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
