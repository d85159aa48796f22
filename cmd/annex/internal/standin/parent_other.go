//go:build !linux

package standin

import "context"

func waitForEnd(context.Context, int) bool { return false }
