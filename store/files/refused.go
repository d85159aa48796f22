package files

import (
	"errors"
	"io"
	"io/fs"
	"syscall"

	"github.com/annexapi/annex/store/journal"
)

// refusing marks what a file system refuses for want of room or of handles as
// transient. Errors of syncs and of closing are never marked, but for a directory that
// could not even be opened.
type refusing struct{ FS }

func (r refusing) Create(name string) (File, error) {
	file, err := r.FS.Create(name)
	if err != nil {
		return nil, journal.Refused(err)
	}
	return refusingFile{file}, nil
}

func (r refusing) Open(name string) (io.ReadCloser, error) {
	file, err := r.FS.Open(name)
	return file, journal.Refused(err)
}

func (r refusing) Rename(oldName, newName string) error {
	return journal.Refused(r.FS.Rename(oldName, newName))
}

func (r refusing) RenameNew(oldName, newName string) error {
	return journal.Refused(r.FS.RenameNew(oldName, newName))
}

func (r refusing) Exchange(oldName, newName string) error {
	return journal.Refused(r.FS.Exchange(oldName, newName))
}

func (r refusing) Remove(name string) error { return journal.Refused(r.FS.Remove(name)) }
func (r refusing) Mkdir(name string) error  { return journal.Refused(r.FS.Mkdir(name)) }

func (r refusing) List(name string) ([]fs.DirEntry, error) {
	list, err := r.FS.List(name)
	return list, journal.Refused(err)
}

func (r refusing) Stat(name string) (fs.FileInfo, error) {
	info, err := r.FS.Stat(name)
	return info, journal.Refused(err)
}

func (r refusing) SyncDir(name string) error {
	err := r.FS.SyncDir(name)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return journal.Refused(err)
	}
	return err
}

type refusingFile struct{ File }

func (f refusingFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, journal.Refused(err)
}
