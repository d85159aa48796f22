package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// What is in the place of an object file may be changed between the last look at it
// and its replacement. So it is not overwritten, but taken out of its place into
// tempDir, and looked at there once more: there it goes, or from there it comes back.
// Its name there tells an opening after a crash where that is.

const displacedMark = ".displaced"

// displacedPath is where a file is that the record of a revision displaces.
func displacedPath(revision uint64, suffix string) string {
	return path.Join(tempDir, fmt.Sprintf("%d%s%s", revision, displacedMark, suffix))
}

func parseDisplaced(base string) (revision uint64, suffix string, ok bool) {
	_, suffix, ok = strings.Cut(base, displacedMark)
	if !ok || suffix != yamlSuffix && suffix != binarySuffix {
		return 0, "", false
	}
	if _, err := fmt.Sscanf(base, "%d", &revision); err != nil || path.Base(displacedPath(revision, suffix)) != base {
		return 0, "", false
	}
	return revision, suffix, true
}

// fingerprint tells a file from all others, and from what becomes of it.
type fingerprint struct {
	stamp stamp
	hash  digest // zero if it cannot be read
}

func (f fingerprint) same(other fingerprint) bool {
	return f.stamp.same(other.stamp) && f.hash == other.hash
}

func (j *Journal) fingerprint(name string) (fingerprint, error) {
	info, err := j.files.Stat(name)
	if err != nil {
		return fingerprint{}, err
	}
	f := fingerprint{stamp: stampOf(info)}
	if !info.Mode().IsRegular() {
		return f, nil
	}
	if _, f.hash, err = j.hash(name); err != nil && !obstructed(err) {
		return fingerprint{}, err
	}
	return f, nil
}

// install moves the content of an operation to its place. It sets touched if
// somebody was faster, and the place is theirs then, unless there is an error.
func (j *Journal) install(o *operation, to string) error {
	if !o.present {
		return j.moveNew(o.content, to)
	}
	// A name that says that the content is complete, and whose place it has.
	displaced := displacedPath(o.record.Revision, o.next.Suffix)
	if err := j.files.Rename(o.content, displaced); err != nil {
		return err
	}
	o.content = displaced
	switch err := j.files.Exchange(displaced, to); {
	case errors.Is(err, errors.ErrUnsupported):
		return j.files.Rename(displaced, to)
	case err != nil:
		return err
	}
	known, err := j.isKnown(displaced, to, o)
	if err != nil {
		return err
	}
	if !known {
		o.touched = true
		return j.putBack(displaced, to, fingerprint{o.stamp, o.next.SHA256})
	}
	return j.files.Remove(displaced)
}

// takeAway removes a file if it is known once it is out of its place. Else it puts it
// back, and reports that somebody has touched it.
func (j *Journal) takeAway(name, displaced string, isKnown func() (bool, error)) (touched bool, err error) {
	if err := j.files.Rename(name, displaced); err != nil {
		return false, err
	}
	known, err := isKnown()
	if err != nil {
		return false, err
	}
	if known {
		return false, j.files.Remove(displaced)
	}
	if err := j.moveNew(displaced, name); errors.Is(err, fs.ErrExist) {
		// Somebody has written another one since, as if over this one.
		return true, j.discard(displaced)
	} else if err != nil {
		return true, err
	}
	return true, j.files.SyncDir(path.Dir(name))
}

// putBack puts what was displaced back in its place, where the server has put a file
// that is to go. What somebody writes to that place meanwhile counts as later.
func (j *Journal) putBack(displaced, to string, put fingerprint) error {
	for {
		edit, err := j.fingerprint(displaced)
		if err != nil {
			return err
		}
		err = j.files.Exchange(displaced, to)
		if errors.Is(err, fs.ErrNotExist) {
			if err = j.moveNew(displaced, to); errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return err
			}
			break
		}
		if errors.Is(err, errors.ErrUnsupported) {
			err = j.files.Rename(displaced, to)
			if err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		got, err := j.fingerprint(displaced)
		if err != nil {
			return err
		}
		if got.same(put) {
			if err := j.files.Remove(displaced); err != nil {
				return err
			}
			break
		}
		put = edit
	}
	return errors.Join(j.files.SyncDir(path.Dir(to)), j.files.SyncDir(tempDir))
}

// discard removes a file that has no place any more. A directory that people have put
// there, and filled, is none that the server wants back.
func (j *Journal) discard(name string) error {
	if err := j.files.Remove(name); err != nil && !obstructed(err) {
		return err
	}
	return nil
}

// restore puts back an edit that was displaced when the process died. It returns
// false if a file in tempDir is none.
func (j *Journal) restore(name string, unfinished []sideRecord) (bool, error) {
	revision, suffix, ok := parseDisplaced(path.Base(name))
	if !ok {
		return false, nil
	}
	at, known, ok := j.displacer(revision, unfinished)
	if !ok {
		return false, nil
	}
	edit, err := j.fingerprint(name)
	if err != nil {
		return false, err
	}
	if edit.hash == known.SHA256 && known.SHA256 != (digest{}) || edit.hash == known.Replaces && known.Replaces != (digest{}) {
		return false, nil
	}
	to := at.stem + suffix
	now, err := j.fingerprint(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = j.moveNew(name, to)
		if err == nil {
			err = errors.Join(j.files.SyncDir(path.Dir(to)), j.files.SyncDir(tempDir))
		}
	case err != nil:
	case now.hash != (digest{}) && (now.hash == known.SHA256 || now.hash == known.Replaces):
		err = j.putBack(name, to, now)
	default:
		return false, nil // somebody has written another one since
	}
	if err != nil {
		return false, err
	}
	j.logger.Info("files: this file was edited when the server failed to write it, the edit is back in its place", "file", j.path(to))
	return true, nil
}

// displacer finds what the record of a revision says of its object file.
func (j *Journal) displacer(revision uint64, unfinished []sideRecord) (place, object, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[j.records[revision].Key]; e != nil && e.revision == revision {
		return e.place, e.object, e.placed
	}
	for _, r := range unfinished {
		if r.Revision == revision {
			at, placed := j.layout.place(r.Key)
			return at, r.object, placed
		}
	}
	return place{}, object{}, false
}
