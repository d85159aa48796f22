// Package standin lets the tool stand in for the programs that envtest starts: kube-apiserver, etcd and kubectl. The folder
// that Assets makes has the tool itself under these names, and the tool behaves by the name under which it is started.
//
// The kube-apiserver is a control plane with all kinds of a kube-apiserver and objects in memory. It accepts the flags of a
// kube-apiserver: it obeys a flag, or ignores flags that cannot change a test, or refuses to start. The etcd is
// healthy and keeps nothing, because the other process is the store.
package standin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Personality selects what happens beside the requests.
type Personality string

const (
	// LikeEnvtest does the work of a kube-apiserver alone: namespaces stay Terminating, nothing collects garbage, and no
	// controller creates service accounts.
	LikeEnvtest Personality = "like-envtest"
	// LikeCluster runs the controllers of a control plane, too.
	LikeCluster Personality = "like-cluster"
)

// Personalities returns all personalities, the default first.
func Personalities() []Personality { return []Personality{LikeEnvtest, LikeCluster} }

// programs are the programs by the names of their files.
var programs = map[string]func(program) int{
	"kube-apiserver": runAPIServer,
	"etcd":           runEtcd,
	"kubectl":        runKubectl,
}

// program is one start of a program.
type program struct {
	// file is the path of the program's file.
	file           string
	args           []string
	stdout, stderr io.Writer
}

// Main runs the program of the name in args, and returns its exit code. It returns false if there is no such program, which
// means that the process is the tool itself.
func Main(args []string, stdout, stderr io.Writer) (code int, ok bool) {
	name := strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	run, ok := programs[name]
	if !ok {
		return 0, false
	}
	file, err := os.Executable()
	if err != nil {
		fmt.Fprintf(stderr, "%s: find the program's file: %v\n", name, err)
		return 1, true
	}
	return run(program{file: file, args: args[1:], stdout: stdout, stderr: stderr}), true
}

// personality returns the personality that the program's folder is named after.
func (p program) personality() Personality {
	name, _, _ := strings.Cut(filepath.Base(filepath.Dir(p.file)), "+")
	if Personality(name) == LikeCluster {
		return LikeCluster
	}
	return LikeEnvtest
}

// controllers returns the controllers that run beside those of the personality.
func (p program) controllers() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(p.file), controllersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the names of the controllers: %w", err)
	}
	return list(string(text)), nil
}

// fail reports a mistake in one line, and returns the exit code of a mistake in the command line.
func (p program) fail(name string, err error) int {
	fmt.Fprintf(p.stderr, "%s: %v\n", name, err)
	return 2
}
