// Package plugin is a kubectl plugin for the subresources of any API server. It reads the server's discovery and
// makes verbs of the subresources. A program of a few lines gives a server a plugin of its own:
//
//	func main() {
//		plugin.Main(plugin.Options{Name: "wardle", Groups: []string{"wardle.example.com"}})
//	}
//
// The kind of a subresource's options in discovery determines its verb: ExecOptions, AttachOptions, LogOptions and
// PortForwardOptions (also those of pods) stand for the verbs exec, cp, attach, logs and port-forward, whatever the
// name of the subresource. A subresource that takes a POST of another kind is an action, and a read-only subresource
// is a view. Both are verbs by their own names, with flags from the server's OpenAPI v3 document.
package plugin
