package config

// AccessLogOptions configure the access log: one line for each request when it has ended, with the caller and its
// address, the verb, the path, the status and the duration. It is for people who watch a server; an
// audit is for records that have to be kept. It contains no credentials. The zero value writes none.
type AccessLogOptions struct {
	// Path is the file; - is standard output. A missing file is created with the mode 0600, and its directory with
	// 0700. A relative path is relative to the working directory. The other fields need a Path.
	Path string
	// Format is text, the default, or json.
	Format string
	// Rotation sets when the file is rotated. Standard output is not rotated.
	Rotation RotationOptions
}
