// Package secretfile rejects files with secrets that every user of the machine may read.
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
