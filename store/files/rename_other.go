//go:build !linux

package files

import "errors"

func renameNew(string, string) error { return errors.ErrUnsupported }

func exchange(string, string) error { return errors.ErrUnsupported }
