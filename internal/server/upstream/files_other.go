//go:build !unix

package upstream

// maxConnections returns 0, for no limit: the system does not limit open files.
func maxConnections() int { return 0 }
