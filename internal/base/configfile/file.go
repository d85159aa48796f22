package configfile

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/annexapi/annex/internal/base/filewatch"
)

// File is a configuration file that is read again when it changes. Its methods are called by one goroutine at a time.
type File struct {
	// What names the file in the log, as the beginning of a sentence.
	What string
	Path string
	// Use applies the content, or returns an error and keeps the content in force.
	Use func(ctx context.Context, data []byte) error
	// Reloaded is called after each change that was applied, Refused once for each content that was rejected.
	Reloaded func(data string)
	Refused  func()

	read    string // the content in force
	refused string // the error of the last content read, if it was rejected
}

// Open reads the file for the first time, and returns its content.
func (f *File) Open(ctx context.Context) (string, error) {
	data, err := f.load()
	if err == nil {
		err = f.Use(ctx, data)
	}
	if err != nil {
		return "", err
	}
	f.read = string(data)
	return f.read, nil
}

// Run reads the file again when it changes, until ctx is done.
func (f *File) Run(ctx context.Context) { filewatch.Run(ctx, f.What, f.Path, f.reload) }

func (f *File) reload(ctx context.Context) error {
	data, err := f.load()
	if err == nil && string(data) == f.read {
		f.refused = ""
		return nil
	}
	if err == nil {
		err = f.Use(ctx, data)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		if reason := err.Error(); reason != f.refused {
			f.refused = reason
			f.Refused()
		}
		return err
	}
	f.read, f.refused = string(data), ""
	f.Reloaded(f.read)
	return nil
}

// load returns the content. Its errors omit the path, which callers add themselves.
func (f *File) load() ([]byte, error) {
	data, err := os.ReadFile(f.Path)
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return nil, path.Err
	}
	return data, err
}
