// Package program is the district of a running process: flags, files, listeners, start and end.
//
// It holds the command line (cli), the effective configuration (plan), the server that is opened, started
// and drained (serve), and what operators use beside the API: manifests for a cluster (manifests), backups and
// checks (maintenance), the pages for people (console), the data directory (datadir), the user's controllers
// (controllers) and the service manager (systemd).
//
// It must not hold a rule about objects, requests or storage: those belong to the districts below, which it
// configures and connects.
//
// A request enters here, at a listener of serve, and goes straight to server/upstream. An answer
// leaves by the same connection.
package program
