// Package cli is the command line of every server: flags become options, and fields in
// errors become flags.
package cli
