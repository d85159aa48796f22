// Command kubectl-annex is the kubectl plugin for API servers made with Annex: kubectl annex lists and calls the
// subresources of the server in the current context. A server's own plugin is a main function of the same form.
package main

import "github.com/annexapi/annex/cmd/kubectl-annex/plugin"

func main() {
	plugin.Main(plugin.Options{Name: "annex"})
}
