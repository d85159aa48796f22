package files

// Disk is the file system that a journal uses by itself, below a directory.
func Disk(root string) FS { return disk{root} }
