package generate

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Module holds the go.mod and go.sum of the tool's module, which fix the versions of generators that are programs
// rather than libraries.
type Module struct{ Mod, Sum []byte }

//go:embed validationgen.go.txt
var validationgenMain []byte

const validationgenPackage = "k8s.io/code-generator/cmd/validation-gen"

var (
	moduleLine = regexp.MustCompile(`(?m)^module .*$`)
	ownModule  = regexp.MustCompile(`(?m)^.*github\.com/annexapi/annex .*\n`)
)

// validationGen returns the path of validation-gen, which it builds unless it is in the user's cache. The program is
// upstream's package main, with validationgen.go.txt in place of its main.go.
func (m Module) validationGen(ctx context.Context) (string, error) {
	if len(m.Mod) == 0 {
		return "", errors.New("build validation-gen: no go.mod to build it with")
	}
	mod := moduleLine.ReplaceAll(ownModule.ReplaceAll(m.Mod, nil), []byte("module annexvalidationgen"))
	goVersion, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("build validation-gen: go env: %w", err)
	}
	sum := sha256.Sum256(slices.Concat(mod, []byte{0}, validationgenMain, []byte{0}, goVersion))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("build validation-gen: %w", err)
	}
	dir := filepath.Join(cache, "annex", "validation-gen")
	program := filepath.Join(dir, fmt.Sprintf("%x", sum[:12]))
	if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() {
		return program, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build validation-gen: %w", err)
	}
	work, err := os.MkdirTemp(dir, "build-*")
	if err != nil {
		return "", fmt.Errorf("build validation-gen: %w", err)
	}
	defer os.RemoveAll(work)
	err = m.buildValidationGen(ctx, work, mod)
	if err == nil {
		// Two processes may build concurrently; their results are the same.
		err = os.Rename(filepath.Join(work, "program"), program)
	}
	if err != nil {
		return "", fmt.Errorf("build validation-gen: %w", err)
	}
	return program, nil
}

func (m Module) buildValidationGen(ctx context.Context, dir string, mod []byte) error {
	for name, text := range map[string][]byte{"go.mod": mod, "go.sum": m.Sum, "main.go": validationgenMain} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	out, err := inTool(ctx, dir, "list", "-f", "{{.Dir}}{{range .GoFiles}}\n{{.}}{{end}}", validationgenPackage)
	if err != nil {
		return err
	}
	upstream, names, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	overlay := map[string]string{}
	for name := range strings.Lines(names) {
		if name = strings.TrimSpace(name); name != "main.go" {
			overlay[filepath.Join(dir, name)] = filepath.Join(upstream, name)
		}
	}
	file, err := writeOverlay(overlay)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	_, err = inTool(ctx, dir, "build", "-overlay", file, "-o", "program", ".")
	return err
}

// inTool runs the go command in a module of the tool's own, independent of the user's workspace and flags. Without
// the library in go.mod, the file needs a few changes, which -mod=mod allows.
func inTool(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, oneLine(stderr.String()))
	}
	return out, nil
}

// writeOverlay writes an overlay file for the go command's flag -overlay.
func writeOverlay(replace map[string]string) (string, error) {
	b, err := json.Marshal(struct{ Replace map[string]string }{replace})
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "annex-overlay-*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
