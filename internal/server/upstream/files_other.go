//go:build !unix

package upstream

// maxConnections is 0: the system does not bound open files.
func maxConnections() int { return 0 }
