package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

// ErrExists is returned if a file exists and must not be overwritten.
var ErrExists = errors.New("exists already")

// BackupTo writes a backup to out and verifies it at the same time, so that it returns an error if a server breaks
// off.
func BackupTo(ctx context.Context, tools Tools, out io.Writer) (Contents, error) {
	read, write := io.Pipe()
	type result struct {
		contents Contents
		err      error
	}
	checked := make(chan result, 1)
	go func() {
		contents, err := Check(read)
		_ = read.CloseWithError(err) // ends the writer, too
		checked <- result{contents, err}
	}()
	err := tools.Backup(ctx, io.MultiWriter(out, write))
	_ = write.Close() // never fails
	check := <-checked
	said := endedEarly("")
	switch {
	case err == nil:
		err = check.err
	case errors.As(check.err, &said) && !strings.Contains(err.Error(), said.Error()):
		err = fmt.Errorf("%w: %w", err, said)
	}
	return check.contents, err
}

// BackupFile writes a backup to a file that only its owner can read. On return the file is complete and durable, or
// does not exist. If path exists already, the error matches ErrExists, unless replace is set.
func BackupFile(ctx context.Context, tools Tools, path string, replace bool) (contents Contents, err error) {
	if _, err := os.Lstat(path); err == nil && !replace {
		return Contents{}, fmt.Errorf("%s %w", path, ErrExists)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Contents{}, err
	}
	err = writeFile(path, replace, func(f io.Writer) (err error) {
		contents, err = BackupTo(ctx, tools, f)
		return err
	})
	return contents, err
}

// writeFile creates a file with the output of write. On return the file is complete and durable, or does not exist.
func writeFile(path string, replace bool, write func(io.Writer) error) error {
	f, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return err
	}
	defer f.Discard()
	if err := write(f); err != nil {
		return err
	}
	if replace {
		return f.Replace()
	}
	return exists(path, f.Place())
}

// Place renames file to path, durably. If path exists by now, the error matches ErrExists, and file stays.
func Place(file, path string) error { return exists(path, atomicfile.Place(file, path)) }

// exists turns the error of an existing path into ErrExists.
func exists(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s %w", path, ErrExists)
	}
	return err
}
