//go:build !linux

package apitest_test

import "testing"

func smallDisk(t *testing.T, _ int) string {
	t.Skip("no small disk to be had on this system")
	return ""
}
