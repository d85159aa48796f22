package standin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/workloads"
)

// controllersFile is the name of the file with the names of the controllers that run beside those of the personality.
const controllersFile = "controllers"

// Assets makes the folder of a personality below root, and returns its path. The folder's name has the version, size and
// time of the tool's file, so that another build of the tool gets another folder. A folder that is complete is reused.
// Several processes may call it at once. The selected controllers, which may be none, run beside those of the personality.
func Assets(root, version string, personality Personality, selection []string) (string, error) {
	tool, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the tool's file: %w", err)
	}
	about, err := os.Stat(tool)
	if err != nil {
		return "", fmt.Errorf("find the tool's file: %w", err)
	}
	stamp := fmt.Sprintf("%s-%d-%d", version, about.Size(), about.ModTime().UnixNano())
	selected := strings.Join(selection, ",")
	dir := filepath.Join(root, stamp, folder(personality, selected))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the programs: %w: name another folder with --dir", err)
	}
	for name := range programs {
		if err := place(tool, filepath.Join(dir, name+suffix())); err != nil {
			return "", fmt.Errorf("place %s: %w: name another folder with --dir", name, err)
		}
	}
	if selected == "" {
		return dir, nil
	}
	if err := os.WriteFile(filepath.Join(dir, controllersFile), []byte(selected), 0o644); err != nil {
		return "", fmt.Errorf("name the controllers: %w: name another folder with --dir", err)
	}
	return dir, nil
}

// folder returns the name of the folder of a personality and further controllers. A name with all of them could be longer
// than a file system permits.
func folder(personality Personality, controllers string) string {
	if controllers == "" {
		return string(personality)
	}
	digest := sha256.Sum256([]byte(controllers))
	return string(personality) + "+" + hex.EncodeToString(digest[:6])
}

// CheckControllers returns an error if there is no controller of a name.
func CheckControllers(names []string) error {
	plane := definition.Held(controlplane.New(controlplane.Options{Extension: workloads.New(workloads.Options{})})).Plane()
	if plane.Mistake != nil {
		return plane.Mistake
	}
	_, err := controllers.Select(plane.Controllers, names)
	return err
}

func suffix() string {
	if runtime.GOOS == "windows" {
		return ".exe"
	}
	return ""
}

// place makes a file with the content of the tool's file, unless it exists. A link would be removed together with the tool's
// file, for example by go run, if it were a symbolic one.
func place(tool, file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := os.Link(tool, file); err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return copyFile(tool, file) // the folder is on another file system
}

// copyFile copies a program. The copy appears under its name when it is complete.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := atomicfile.Create(to, 0o755)
	if err != nil {
		return err
	}
	defer out.Discard()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Replace()
}
