// Command wardle serves the API of the sample API server in the Kubernetes documentation: flunders, and fischers that
// ban some of them.
package main

import (
	"example.com/wardle/server"
	"github.com/annexapi/annex"
)

func main() {
	annex.Main(server.New())
}
