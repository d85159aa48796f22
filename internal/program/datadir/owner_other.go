//go:build !unix

package datadir

import "io/fs"

func isOwner(fs.FileInfo) bool { return true }

func isMountPoint(string, fs.FileInfo) bool { return false }
