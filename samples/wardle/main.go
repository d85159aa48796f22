// Command wardle serves the API that the Kubernetes documentation builds its
// sample API server around: flunders, and fischers that ban some of them.
package main

import (
	"example.com/wardle/server"
	"github.com/annexapi/annex/program"
)

func main() {
	program.Main(server.New())
}
