// Package compared contains tests only. They import CustomResourceDefinitions as Go types, serve these types, and
// compare the server with a control plane that serves the same definitions.
package compared
