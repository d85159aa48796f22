// Package plugin is a kubectl plugin for the subresources of any API server: it finds in discovery
// what kinds have besides their objects, and makes verbs of it. A program of a few lines gives a
// server a plugin of its own:
//
//	func main() {
//		plugin.Main(plugin.Options{Name: "wardle", Groups: []string{"wardle.example.com"}})
//	}
//
// What a subresource is for, discovery says by the kind of its options: ExecOptions, AttachOptions,
// LogOptions and PortForwardOptions (those of pods as well) are for the verbs exec, cp, attach, logs
// and port-forward, whatever the subresource is called. One that takes a POST of another kind is an
// action, and one that is only read is a view; both are verbs by their own names, whose flags are made
// of the server's OpenAPI v3 document.
package plugin
