// Command release releases the modules that users import or install, with the programs for users without Go.
//
//	release tag VERSION            tag the checkout's HEAD
//	release build VERSION FOLDER   write the output of these tags into FOLDER
//	release dry VERSION FOLDER [PLATFORM...]
//	                               write the output that tags of HEAD would have, for these platforms, and tag nothing
//
// FOLDER gets archives of the programs for each platform with their bills of materials, shell completions, a container
// image, a manifest for krew, the release notes, the list of tags, checksums of all of that, and a file proxy with the
// modules. The same commit and the same Go result in the same bytes.
//
// A module is released by a tag, and `go install MODULE@VERSION` rejects a go.mod with replace lines. The modules of
// workloads, of the tool and of the kubectl plugin have some, because they are developed beside the library. So their tags
// stand on commits above HEAD, which are on no branch: there they require releases, and their go.sum has the hashes of
// these releases. The tool requires the release of workloads, so it has a commit of its own, above that of workloads.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

const (
	library   = "github.com/annexapi/annex"
	workloads = "workloads"         // the folder of the module of that name
	tool      = "cmd/annex"         // the folder of the tool's module
	plugin    = "cmd/kubectl-annex" // the folder of the kubectl plugin's
)

// folders are the folders of the modules beside the library, in the order of their release.
var folders = []string{workloads, tool, plugin}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	verb, needs := "", map[string]int{"tag": 2, "build": 3, "dry": 3}
	if len(args) > 0 {
		verb = args[0]
	}
	if needs[verb] == 0 || len(args) < needs[verb] || len(args) > needs[verb] && verb != "dry" {
		return errors.New("usage: release tag VERSION | release build VERSION FOLDER | release dry VERSION FOLDER [PLATFORM...]; " +
			"VERSION is such as v0.1.0")
	}
	top, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	switch verb {
	case "tag":
		if err := tag(top, args[1]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "tagged; publish it with\n  git push origin %s\n", strings.Join(tags(args[1]), " "))
		return err
	case "build":
		return build(top, args[1], args[2], platforms, out)
	default:
		on, err := selected(args[3:])
		if err != nil {
			return err
		}
		return dry(top, args[1], args[2], on, out)
	}
}

func git(dir string, args ...string) (string, error) {
	return gitAt(dir, "", args...)
}

// gitAt runs git. A date is that of the commits and tags that it makes.
func gitAt(dir, date string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	if date != "" {
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
