package files

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"
)

// An object file may change between the last look at it and its replacement. So it is not overwritten, but moved into
// tempDir and checked there once more: then it is removed, or moved back.

const (
	// A file has the first suffix while it is being written, and the second once it is complete and about to be
	// swapped.
	unfinished = ".new"
	swapped    = ".swap"
	// syncLimit is the number of files written concurrently.
	syncLimit = 64
)

// tempName returns the path of an object file's content before it is installed, and of the displaced file afterwards.
func tempName(name, suffix string) string {
	sum := digestOf([]byte(name))
	return path.Join(tempDir, hex.EncodeToString(sum[:16])+suffix)
}

// errTouched means that a file was not in the expected state, and was left alone.
var errTouched = errors.New("it was changed meanwhile")

// install moves a complete temporary file, with the hash put, to its place. The hash of the file there is was, or
// zero if there should be none. If there is any other file, the error matches errTouched.
func (j *Journal) install(temp, name string, was, put digest) error {
	if was == (digest{}) {
		err := j.moveNew(temp, name)
		if errors.Is(err, fs.ErrExist) {
			return errTouched
		}
		return err
	}
	// This name marks the content as complete, and identifies its place.
	swap := tempName(name, swapped)
	if err := j.files.Rename(temp, swap); err != nil {
		return err
	}
	switch err := j.files.Exchange(swap, name); {
	case errors.Is(err, errors.ErrUnsupported):
		return j.files.Rename(swap, name)
	case errors.Is(err, fs.ErrNotExist):
		return errors.Join(errTouched, j.files.Remove(swap))
	case err != nil:
		return err
	}
	if hash, err := j.hash(swap); err == nil && hash == was {
		return j.files.Remove(swap)
	}
	// An edit: move it back.
	if err := j.files.Exchange(swap, name); err != nil {
		return errors.Join(errTouched, j.restore(swap, name, fileState{file: put}))
	}
	if hash, err := j.hash(swap); err == nil && hash == put {
		return errors.Join(errTouched, j.files.Remove(swap))
	}
	// There were two edits in a row: the first one is back in the place.
	return errors.Join(errTouched, j.keepBeside(swap, name))
}

// takeAway removes a file with the hash was. Any other file stays, and the error matches errTouched.
func (j *Journal) takeAway(name string, was digest) error {
	swap := tempName(name, swapped)
	if err := j.files.Rename(name, swap); err != nil {
		return err
	}
	if hash, err := j.hash(swap); err == nil && hash == was {
		return j.files.Remove(swap)
	}
	return errors.Join(errTouched, j.restore(swap, name, fileState{}))
}

// restore moves an edit back to its place. If there is another file by then, and known does not have it, the edit is
// kept beside it. A file that known has is no edit, and is removed.
func (j *Journal) restore(temp, name string, k fileState) error {
	if hash, err := j.hash(temp); err == nil && k.has(hash) {
		return j.files.Remove(temp)
	}
	hash, err := j.hash(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = j.moveNew(temp, name)
		if errors.Is(err, fs.ErrExist) {
			return j.keepBeside(temp, name)
		}
	case err == nil && k.has(hash):
		err = j.files.Rename(temp, name)
	default:
		return j.keepBeside(temp, name)
	}
	if err != nil {
		return err
	}
	j.logger.Info("files: the file was edited while the server was writing it, restored the edit", "file", j.path(name))
	return j.files.SyncDir(path.Dir(name))
}

// keepBeside moves an edit that has lost its place to a name beside it, which is no object's.
func (j *Journal) keepBeside(temp, name string) error {
	hash, _ := j.hash(temp) // an unreadable file has no hash
	beside := fmt.Sprintf("%s.%s.orig", name, hex.EncodeToString(hash[:4]))
	if err := j.move(temp, beside, j.files.Rename); err != nil {
		return err
	}
	j.logger.Warn(
		"files: the file was written twice at the same time, the first version is kept beside it",
		"file",
		j.path(name),
		"kept",
		j.path(beside),
	)
	return j.files.SyncDir(path.Dir(name))
}

// clean removes the temporary files of a crash, and moves edits back that were out of their places.
func (j *Journal) clean() error {
	list, err := j.files.List(tempDir)
	if err != nil {
		return err
	}
	var names map[string]*entry // by the displaced file's temporary name
	for _, item := range list {
		temp := path.Join(tempDir, item.Name())
		if !strings.HasSuffix(temp, swapped) {
			if err := j.files.Remove(temp); err != nil {
				return err
			}
			continue
		}
		if names == nil {
			names = make(map[string]*entry, len(j.entries))
			for _, e := range j.entries {
				names[tempName(e.name(), swapped)] = e
			}
		}
		e := names[temp]
		if e == nil {
			j.logger.Warn("files: leftover file of unknown origin", "file", j.path(temp))
			continue
		}
		if err := j.restore(temp, e.name(), e.known); err != nil {
			return err
		}
	}
	return nil
}

// obstructed reports whether an error is due to changes of the tree by people, instead of a failing disk.
func obstructed(err error) bool {
	for _, cause := range []error{fs.ErrNotExist, fs.ErrExist, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.ELOOP,
		syscall.EXDEV} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// moveNew moves a file into a directory, which is created if necessary. If the name exists, the error matches
// fs.ErrExist.
func (j *Journal) moveNew(from, to string) error {
	return j.move(from, to, func(from, to string) error {
		err := j.files.RenameNew(from, to)
		if errors.Is(err, errors.ErrUnsupported) {
			if _, err := j.files.Stat(to); err == nil {
				return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
			}
			return j.files.Rename(from, to)
		}
		return err
	})
}

func (j *Journal) move(from, to string, rename func(from, to string) error) error {
	dir := path.Dir(to)
	if err := j.mkdir(dir); err != nil {
		return err
	}
	err := rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		// A person has removed the directory.
		j.dirs.forget()
		if err := j.mkdir(dir); err != nil {
			return err
		}
		err = rename(from, to)
	}
	return err
}

// dirs remembers the existing directories.
type dirs struct {
	mu   sync.Mutex
	made map[string]bool
}

func (d *dirs) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.made)
}

// mkdir creates a directory and its parents, durably.
func (j *Journal) mkdir(dir string) error {
	j.dirs.mu.Lock()
	defer j.dirs.mu.Unlock()
	return j.mkdirLocked(dir)
}

func (j *Journal) mkdirLocked(dir string) error {
	if dir == "." || j.dirs.made[dir] {
		return nil
	}
	parent := path.Dir(dir)
	if err := j.mkdirLocked(parent); err != nil {
		return err
	}
	if err := j.files.Mkdir(dir); err != nil {
		return err
	}
	if err := j.files.SyncDir(parent); err != nil {
		return err
	}
	if j.dirs.made == nil {
		j.dirs.made = map[string]bool{}
	}
	j.dirs.made[dir] = true
	return nil
}

// write writes and syncs a file.
func (j *Journal) write(name string, data []byte) (info fs.FileInfo, err error) {
	file, err := j.files.Create(name)
	if err != nil {
		return nil, err
	}
	n, err := file.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		info, err = file.Stat()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil && info.Size() != int64(len(data)) {
		err = fmt.Errorf("write %s: wrote only %d bytes of %d", name, info.Size(), len(data))
	}
	return info, err
}

// read reads a file of at most limit bytes.
func (j *Journal) read(name string, limit int64) ([]byte, error) {
	file, err := j.files.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}

var errTooLarge = errors.New("too large")

// content is the content of an object file at one moment.
type content struct {
	data  []byte
	hash  digest
	stamp stamp
}

// load reads an object file. It follows no links.
func (j *Journal) load(name string) (c content, err error) {
	info, err := j.files.Stat(name)
	if err != nil {
		return content{}, err
	}
	if !info.Mode().IsRegular() {
		return content{}, fmt.Errorf("%s is not a regular file: %w", name, syscall.EISDIR)
	}
	c.stamp = stampOf(info)
	// The server may write larger files than it accepts.
	if c.data, err = j.read(name, 64<<20); err != nil {
		return content{}, err
	}
	c.hash = digestOf(c.data)
	return c, nil
}

// hash is load for callers that need only the hash.
func (j *Journal) hash(name string) (digest, error) {
	c, err := j.load(name)
	return c.hash, err
}

// parallel calls do for 0 to n-1, several at once, and returns the first error.
func parallel(n int, do func(i int) error) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(n, syncLimit) {
		group.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				failed := first != nil
				mu.Unlock()
				if i >= n || failed {
					return
				}
				if err := do(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return first
}
