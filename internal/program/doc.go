// Package program is the district of a running process: flags, files, listeners, start and shutdown.
//
// It holds the command line (cli), the effective configuration (plan), opening, running and draining a server
// (serve), and the operator's tools beside the API: manifests for a cluster (manifests), backups and checks
// (maintenance), the web pages (console), the data directory (datadir), the user's controllers (controllers) and
// the service manager (systemd).
//
// It must not hold rules about objects, requests or storage: these belong to the districts below, which it
// configures and connects.
//
// A request enters at a listener of serve and goes straight to server/upstream. Its response leaves on the same
// connection.
package program
