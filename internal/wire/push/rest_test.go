package push_test

import (
	"context"
	"slices"
	"testing"

	"github.com/annexapi/annex/internal/wire/push"
)

func TestAround_remainingWork(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		var did []string
		around := func(name string) func(func()) {
			return func(serve func()) {
				defer func() { did = append(did, name+" ends") }()
				did = append(did, name)
				serve()
			}
		}
		ctx, rest := push.WithRest(t.Context())
		if push.RestFrom(ctx).Around(around("early")) {
			t.Error("something is around nothing")
		}
		push.RestFrom(ctx).Leave(func() { did = append(did, "left") })
		if !rest.Around(around("inner")) || !rest.Around(around("outer")) {
			t.Error("nothing is left")
		}
		want := []string{"outer", "inner", "left", "inner ends", "outer ends"}
		if dropped {
			rest.Drop()
			want = slices.Delete(want, 2, 3)
		}
		rest.Do()
		if !slices.Equal(did, want) {
			t.Errorf("dropped %v: %v, want %v", dropped, did, want)
		}
	}
}

func TestWithoutRest_hidesRest(t *testing.T) {
	t.Parallel()
	ctx, rest := push.WithRest(t.Context())
	for name, ctx := range map[string]context.Context{"none": t.Context(), "taken": push.WithoutRest(ctx)} {
		if push.RestFrom(ctx) != nil {
			t.Errorf("%s: something may be left", name)
		}
		if push.RestFrom(ctx).Around(func(func()) {}) {
			t.Errorf("%s: something is left", name)
		}
		push.RestFrom(ctx).Drop()
	}
	if push.RestFrom(ctx) != rest {
		t.Error("nothing may be left")
	}
	rest.Do() // does nothing
}
