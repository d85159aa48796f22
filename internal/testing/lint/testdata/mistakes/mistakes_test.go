package mistakes

import "testing"

func TestTwice(t *testing.T) {
	x := 1
	x = 2
	t.Logf("%d", "two")
	_ = x
}

func Testmalformed(t *testing.T) {}
