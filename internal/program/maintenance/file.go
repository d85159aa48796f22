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

// ErrExists is returned for a file that is not to be overwritten.
var ErrExists = errors.New("exists already")

// BackupTo writes a backup to out and checks, while it does, that it is whole: what
// a server breaks off is noticed.
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

// BackupFile writes a backup to a file, which only its owner can read. The file is
// there as a whole, durably, or not at all. One that is there already is an error
// that matches ErrExists, unless it is to be replaced.
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

// writeFile makes a file out of what write writes, as a whole and durably or not at
// all.
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

// Place gives a file its name, durably. If something has that by now, the error matches
// ErrExists, and the file stays where it is.
func Place(file, path string) error { return exists(path, atomicfile.Place(file, path)) }

// exists makes ErrExists of the error that says that path exists.
func exists(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s %w", path, ErrExists)
	}
	return err
}
