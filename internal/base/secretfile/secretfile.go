// Package secretfile rejects files with secrets that every user of the machine may read or change.
package secretfile

import (
	"fmt"
	"io/fs"
	"runtime"
)

// Check rejects a file that users other than its owner and group may read or write. The group may, because clusters
// mount secrets in this way for programs that do not run as root. Holds names the secrets in the error: "tokens".
func Check(info fs.FileInfo, holds string) error {
	if runtime.GOOS == "windows" { // there are no modes
		return nil
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("the file has %s and is readable or writable by every user of this machine (mode %04o): chmod "+
			"it to 600", holds, mode)
	}
	return nil
}

// CheckChanges is Check for a file that may be in a repository, whose files every user of the machine may read when git
// has checked them out. It rejects a file that users other than its owner and group may write, since they could add
// users, and returns a warning for a file that they may read; empty if there is none.
func CheckChanges(info fs.FileInfo, holds string) (warning string, err error) {
	if Check(info, holds) == nil {
		return "", nil
	}
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return "", fmt.Errorf("the file has %s and is writable by every user of this machine (mode %04o): chmod it to 600", holds, mode)
	}
	return fmt.Sprintf("the file has %s and is readable by every user of this machine (mode %04o): chmod it to 600", holds, mode), nil
}
