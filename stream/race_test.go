//go:build race

package stream_test

// costs is how many times as much memory the race detector takes as there is without it.
const costs = 2
