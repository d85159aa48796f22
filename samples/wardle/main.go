// Command wardle serves the API of the sample API server in the Kubernetes documentation: flunders, and fischers that
// ban some of them.
package main

import (
	"example.com/wardle/server"
	"github.com/annexapi/annex/program"
)

func main() {
	program.Main(server.New())
}
