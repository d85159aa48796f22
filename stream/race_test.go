//go:build race

package stream_test

// costs is the factor by which the race detector increases memory.
const costs = 2
