// Package crashfs is a file system in memory, for tests, whose power can be cut while it is written to.
package crashfs

import "github.com/cockroachdb/pebble/v2/vfs"

// FS is Pebble's MemFS, but its CrashClone can be called at any time. MemFS itself deadlocks if CrashClone is called
// during its ReuseForWrite, which takes a read lock that it already holds.
type FS struct{ *vfs.MemFS }

// New returns an empty file system.
func New() FS { return FS{vfs.NewCrashableMem()} }

// ReuseForWrite renames a file and opens it, in two steps that a crash may come between.
func (f FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(newname, category)
}

// CrashClone returns the state of the file system after a crash now.
func (f FS) CrashClone(config vfs.CrashCloneCfg) FS { return FS{f.MemFS.CrashClone(config)} }
