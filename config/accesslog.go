package config

// AccessLogOptions say where a line is written for each request when it has ended: who sent it
// from where, the verb and the path, the answer, how long it took. It is for people, who look at
// what a server is doing; an audit is for what has to be known later. Credentials are not in it.
// The zero value writes none.
type AccessLogOptions struct {
	// Path is the file, which is made if missing with the mode 0600, and its directory with
	// 0700; - is standard output. A relative path begins in the working directory. Fields beside it
	// are for a Path only.
	Path string
	// Format is text, the default, or json.
	Format string
	// Rotation says when the file makes room for a new one. Standard output has none.
	Rotation RotationOptions
}
