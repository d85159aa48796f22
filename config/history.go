package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// History is how long the revisions of a resource's objects are kept for clients, beyond Options.HistoryAge and
// HistoryRevisions. The bounds hold together. The zero value keeps no more than those.
type History struct {
	// Age is the time after which a revision that was replaced, or an object that was deleted, may be forgotten; 0 is no
	// bound. Without it, deleted objects are forgotten after 30 days.
	Age time.Duration
	// Revisions is the number of replaced revisions that are kept of each object; 0 is no bound.
	Revisions int
	// Bytes bounds the size of all revisions that are kept of the resource; the oldest ones are forgotten first. 0 means 1
	// GiB.
	Bytes int64
}

// Keeps reports whether any of the bounds is set that turn keeping on.
func (h History) Keeps() bool { return h.Age > 0 || h.Revisions > 0 }

// Check returns an error for a history that keeps nothing, or that has a negative bound.
func (h History) Check() error {
	switch {
	case h.Age < 0 || h.Revisions < 0 || h.Bytes < 0:
		return fmt.Errorf("the bounds of a history must not be negative: %+v", h)
	case !h.Keeps():
		return fmt.Errorf("a history needs an Age, a number of Revisions, or both")
	}
	return nil
}

// String returns the history as ParseHistory reads it; empty if it keeps nothing.
func (h History) String() string {
	var parts []string
	if h.Age > 0 {
		age := h.Age.String()
		if strings.HasSuffix(age, "m0s") {
			age = strings.TrimSuffix(age, "0s")
		}
		if strings.HasSuffix(age, "h0m") {
			age = strings.TrimSuffix(age, "0m")
		}
		parts = append(parts, age)
	}
	if h.Revisions > 0 {
		parts = append(parts, strconv.Itoa(h.Revisions))
	}
	if h.Bytes > 0 {
		parts = append(parts, resource.NewQuantity(h.Bytes, resource.BinarySI).String())
	}
	return strings.Join(parts, "+")
}

// ParseHistory parses an age such as 720h, a number of revisions such as 100, or both, as in 720h+100. A size such as 10Gi
// may follow, as in 720h+10Gi.
func ParseHistory(text string) (History, error) {
	var h History
	for part := range strings.SplitSeq(text, "+") {
		n, number := strconv.Atoi(part)
		age, duration := time.ParseDuration(part)
		switch {
		case number == nil && n > 0 && h.Revisions == 0:
			h.Revisions = n
		case duration == nil && age > 0 && h.Age == 0:
			h.Age = age
		case number != nil && duration != nil && h.Bytes == 0:
			if size, err := resource.ParseQuantity(part); err == nil {
				h.Bytes = size.Value()
			}
			if h.Bytes <= 0 {
				return History{}, notHistory(text)
			}
		default:
			return History{}, notHistory(text)
		}
	}
	if !h.Keeps() {
		return History{}, notHistory(text)
	}
	return h, nil
}

func notHistory(text string) error {
	return fmt.Errorf("%q is not a history: use an age such as 720h, a number of revisions such as 100, or both, as in 720h+100, and a "+
		"size, as in 720h+10Gi", text)
}
