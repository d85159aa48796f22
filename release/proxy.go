package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// serve writes a module, which is in dir of the repository's revision, into folder, in the layout of a proxy.
func serve(top, revision, dir, path, version, folder string) error {
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	at := filepath.Join(folder, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	mod, err := exec.Command("git", "-C", top, "show", revision+":"+filepath.ToSlash(filepath.Join(dir, "go.mod"))).Output()
	if err != nil {
		return fmt.Errorf("go.mod at %s: %w", revision, err)
	}
	when, err := git(top, "log", "-1", "--format=%cI", revision)
	if err != nil {
		return err
	}
	committed, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": committed.UTC()})
	if err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	err = zip.CreateFromVCS(archive, module.Version{Path: path, Version: version}, top, revision, dir)
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
