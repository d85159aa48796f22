package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// run runs the suite in a copy of its module in dir, package by package.
func (s suite) run(ctx context.Context, dir, logs string, target programs) (results, error) {
	var all results
	if err := s.fetch(ctx, dir); err != nil {
		return all, err
	}
	packages, err := s.list(ctx, dir)
	if err != nil {
		return all, err
	}
	for i, p := range packages {
		binary := filepath.Join(dir, fmt.Sprintf("package-%d.test", i))
		if _, err := s.goCommand(ctx, dir, "test", "-c", "-p=2", "-ldflags=-s -w", "-o", binary, p.path); err != nil {
			return all, err
		}
		log := filepath.Join(logs, regexp.MustCompile(`[^\w.-]+`).ReplaceAllString(s.name()+" "+p.path, "-")+".log")
		test := exec.CommandContext(ctx, binary, s.arguments(target, p.path)...)
		test.Dir = p.dir
		test.Env = append(os.Environ(), "GOWORK=off", "KUBEBUILDER_ASSETS="+target.dir)
		got, err := runTest(test, log, filepath.Join(target.dir, "kube-apiserver"))
		if err != nil {
			return all, err
		}
		fmt.Printf("%s\t%s\n", p.path, got.row())
		for _, name := range got.failures {
			fmt.Printf("  %s\n", name)
		}
		all.add(got)
		if err := os.Remove(binary); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (s suite) arguments(target programs, path string) []string {
	args := []string{"-test.v", "-test.timeout=20m"}
	if s.skip != "" {
		args = append(args, "-test.skip="+s.skip)
	}
	if target.personality == "like-cluster" {
		for end, skip := range s.clusterSkip {
			if strings.HasSuffix(path, end) {
				args = append(args, "-ginkgo.skip="+skip)
			}
		}
	}
	return args
}

// fetch copies the module to dir, or lets its program make a project there.
func (s suite) fetch(ctx context.Context, dir string) error {
	text, err := s.goCommand(ctx, "", "mod", "download", "-json", s.module+"@"+s.version)
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return fmt.Errorf("go mod download: %w", err)
	}
	if err := os.CopyFS(dir, os.DirFS(module.Dir)); err != nil {
		return err
	}
	if err := writable(dir); err != nil {
		return err
	}
	if len(s.scaffold) > 0 {
		return s.makeProject(ctx, dir)
	}
	for _, replaced := range s.drop {
		if _, err := s.goCommand(ctx, dir, "mod", "edit", "-dropreplace="+replaced); err != nil {
			return err
		}
	}
	return nil
}

// makeProject builds the program whose sources are in dir, and makes a project with it in dir instead.
func (s suite) makeProject(ctx context.Context, dir string) error {
	program := dir + "-program"
	if _, err := s.goCommand(ctx, dir, "build", "-o", program, "."); err != nil {
		return err
	}
	defer os.Remove(program)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	lines := [][]string{}
	for _, line := range s.scaffold {
		lines = append(lines, append([]string{program}, strings.Fields(line)...))
	}
	for _, line := range append(lines, []string{"make", "manifests", "generate"}) {
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
		if _, err := output(cmd); err != nil {
			return err
		}
	}
	return nil
}

// goCommand runs the go command in the suite's module and returns what it prints.
func (s suite) goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if len(s.drop) > 0 {
		cmd.Env = append(cmd.Env, "GOFLAGS=-mod=mod") // the sums of these modules are missing
	}
	return output(cmd)
}

// writable lets tests write files beside their sources, and makes scripts executable: archives of modules have no modes.
func writable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() || strings.HasSuffix(path, ".sh"):
			return os.Chmod(path, 0o755)
		default:
			return os.Chmod(path, 0o644)
		}
	})
}

// testPackage is a package with tests.
type testPackage struct{ path, dir string }

func (s suite) list(ctx context.Context, dir string) ([]testPackage, error) {
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"
	text, err := s.goCommand(ctx, dir, append([]string{"list", "-f", format}, s.packages...)...)
	if err != nil {
		return nil, err
	}
	without, err := regexp.Compile(s.without)
	if err != nil {
		return nil, err
	}
	var packages []testPackage
	for line := range strings.Lines(text) {
		path, dir, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if ok && (s.without == "" || !without.MatchString(path)) {
			packages = append(packages, testPackage{path, dir})
		}
	}
	return packages, nil
}

// runTest runs the tests of one package. What they print is in the file log.
func runTest(test *exec.Cmd, log, server string) (results, error) {
	file, err := os.Create(log)
	if err != nil {
		return results{}, err
	}
	defer file.Close()
	test.Stdout, test.Stderr = file, file
	test.Cancel = func() error { return test.Process.Signal(syscall.SIGTERM) }
	began := time.Now()
	peak := watchMemory(server)
	failed := test.Run()
	memory := peak()
	if test.ProcessState == nil {
		return results{}, failed
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return results{}, err
	}
	got := parse(string(text))
	got.wall, got.memory = time.Since(began), memory
	// The times of servers are in it, because the tests wait for their end.
	got.cpu = test.ProcessState.UserTime() + test.ProcessState.SystemTime()
	if failed != nil && got.failed == 0 {
		got.failed++
		got.failures = append(got.failures, fmt.Sprintf("the process: %v: see %s", failed, log))
	}
	return got, nil
}

// watchMemory looks for processes of a program until the returned function is called, which returns the peak of the memory of one
// process in bytes. It returns 0 on systems without /proc.
func watchMemory(program string) func() int64 {
	stop, result := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				result <- peak
				return
			case <-tick.C:
				for _, process := range processes(program) {
					peak = max(peak, process.memory("status", "VmHWM"))
				}
			}
		}
	}()
	return func() int64 { close(stop); return <-result }
}

// process is the folder of a process in /proc.
type process string

func processes(program string) []process {
	files, _ := filepath.Glob("/proc/[0-9]*/exe")
	var all []process
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && target == program {
			all = append(all, process(filepath.Dir(file)))
		}
	}
	return all
}

// memory returns a figure of a file of the process in bytes, or 0 if the process has ended.
func (p process) memory(file, name string) int64 {
	status, _ := os.ReadFile(filepath.Join(string(p), file))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
