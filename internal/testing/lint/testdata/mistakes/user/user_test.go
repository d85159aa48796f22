package user_test

import (
	"testing"

	"example.com/mistakes/user"
)

func TestUse(t *testing.T) {
	user.Use()
	t.Errorf("%d", "text")
}
