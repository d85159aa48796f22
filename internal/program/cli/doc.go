// Package cli is the command line of every server. It turns flags into options, and field names in errors into flag
// names.
package cli
