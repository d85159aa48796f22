// Package compared has tests only: they import CustomResourceDefinitions as Go types, serve
// these, and compare the answers with those of a control plane that serves the same
// definitions.
package compared
