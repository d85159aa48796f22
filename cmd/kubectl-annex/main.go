// Command kubectl-annex is the kubectl plugin for API servers made with Annex: kubectl annex
// shows what the server of the current context offers beside its objects, and uses it. A plugin of a
// server's own is a main of the same form.
package main

import "github.com/annexapi/annex/cmd/kubectl-annex/plugin"

func main() {
	plugin.Main(plugin.Options{Name: "annex"})
}
