package files

// Disk returns the default file system of a journal, below a directory.
func Disk(root string) FS { return disk{root} }
