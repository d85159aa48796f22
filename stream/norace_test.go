//go:build !race

package stream_test

const costs = 1
