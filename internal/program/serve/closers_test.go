package serve

import (
	"errors"
	"slices"
	"testing"
)

func TestClosers_lastOpenedFirst(t *testing.T) {
	t.Parallel()
	var closed []string
	c := &closers{}
	c.run(func() { closed = append(closed, "first") })
	c.add(func() error { closed = append(closed, "second"); return errors.New("second fails") })
	c.add(func() error { closed = append(closed, "third"); return nil })
	cause := errors.New("the fourth cannot be opened")
	err := c.after(cause)
	if !errors.Is(err, cause) || err.Error() != "the fourth cannot be opened (and closing: second fails)" {
		t.Errorf("got %v", err)
	}
	if want := []string{"third", "second", "first"}; !slices.Equal(closed, want) {
		t.Errorf("closed %q, want %q", closed, want)
	}
}

func TestClosers_nothingFails(t *testing.T) {
	t.Parallel()
	cause := errors.New("the first cannot be opened")
	if err := (&closers{}).after(cause); err != cause {
		t.Errorf("got %v", err)
	}
}
