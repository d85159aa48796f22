package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Found is a package of the current module.
type Found struct {
	// Path is its import path, and Name the name in its package clauses.
	Path, Name string
	// Module is the folder of its module; empty if there is none.
	Module string
}

// FindPackage finds a package by its folder or import path; an empty name means the package beside go.mod. The
// package need not compile.
func FindPackage(ctx context.Context, name string) (Found, error) {
	mod, err := goOutput(ctx, "env", "GOMOD")
	if err != nil {
		return Found{}, err
	}
	if mod == "" || mod == os.DevNull {
		return Found{}, nil
	}
	if name == "" {
		name = filepath.Dir(mod)
	}
	out, err := goOutput(ctx, "list", "-e", "-find", "-json=ImportPath,Name,Error,Module", name)
	if err != nil {
		return Found{}, err
	}
	var listed struct {
		ImportPath, Name string
		Module           *struct{ Dir string }
		Error            *struct{ Err string }
	}
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		return Found{}, fmt.Errorf("%s matches several packages: pass one package", name)
	}
	if listed.Name == "" {
		why := "the folder has no Go files"
		if listed.Error != nil {
			why = strings.ReplaceAll(strings.TrimSpace(listed.Error.Err), "\n", "; ")
		}
		return Found{}, fmt.Errorf("package %s: %s", name, why)
	}
	found := Found{Path: listed.ImportPath, Name: listed.Name, Module: filepath.Dir(mod)}
	if listed.Module != nil && listed.Module.Dir != "" {
		found.Module = listed.Module.Dir
	}
	return found, nil
}

func goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the go command is not in PATH: install Go")
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %s", args[0], strings.ReplaceAll(text(stderr.Bytes(), err), "\n", "; "))
	}
	return strings.TrimSpace(string(out)), nil
}

// Once builds a program and runs it to its end with Args.
func Once(ctx context.Context, o Options) error {
	bin, err := os.MkdirTemp("", "annex-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	binary := filepath.Join(bin, "server")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, o.Package)
	build.Dir = o.Dir
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("the project does not build:\n%s", text(out, err))
	}
	cmd := exec.CommandContext(ctx, binary, o.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = o.Dir, o.Stdout, o.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(o.Args, " "), err)
	}
	return nil
}
