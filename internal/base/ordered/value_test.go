package ordered_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/base/ordered"
)

func sign(a, b ordered.Value) int { return cmp.Compare(a, b) }

func TestEncode_order(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, sorted := range [][]any{
		{math.Inf(-1), -math.MaxFloat64, int64(math.MinInt64), int64(math.MinInt64 + 1), -1e10, int64(-2), -1.5, int64(-1),
			-math.SmallestNonzeroFloat64, int64(0), 0.5, int64(1), 1.5,
			int64(1 << 53), int64(1<<53 + 1), int64(1<<53 + 2), int64(math.MaxInt64 - 1), int64(math.MaxInt64), 1e19, math.Inf(1)},
		{"", "\x00", "a", "a\x00", "ab", "b", "ä", "日本"},
		{false, true},
		{time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, 0), now, now.Add(time.Nanosecond), now.Add(time.Second)},
		{nil, false, int64(0), now, ""}, // types, after the missing value
	} {
		for i, a := range sorted {
			for j, b := range sorted {
				if got, want := sign(ordered.Encode(a), ordered.Encode(b)), cmp.Compare(i, j); got != want {
					t.Errorf("%v and %v compare as %d, want %d", a, b, got, want)
				}
			}
		}
	}
	for _, equal := range [][2]any{{int64(3), 3.0}, {0.0, math.Copysign(0, -1)}, {int64(0), 0.0}, {now, now.In(time.FixedZone("", 3600))},
		{math.NaN(), nil}, {time.Time{}, nil}, {[]string{"x"}, nil}} {
		if ordered.Encode(equal[0]) != ordered.Encode(equal[1]) {
			t.Errorf("%v and %v differ", equal[0], equal[1])
		}
	}
	long := strings.Repeat("ä", ordered.LongestString)
	if a, b := ordered.Encode(long), ordered.Encode(long+"x"); a != b || len(a) > ordered.LongestString+1 {
		t.Errorf("long strings: %d and %d bytes", len(a), len(b))
	}
}

func TestEncode_randomNumbers_order(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		a, b := int64(random.Uint64()), int64(random.Uint64())
		if random.IntN(2) == 0 {
			b = a + random.Int64N(5) - 2
		}
		if got, want := sign(ordered.Encode(a), ordered.Encode(b)), cmp.Compare(a, b); got != want {
			t.Fatalf("%d and %d compare as %d", a, b, got)
		}
		f, g := math.Float64frombits(random.Uint64()), math.Float64frombits(random.Uint64())
		if math.IsNaN(f) || math.IsNaN(g) {
			continue
		}
		if got, want := sign(ordered.Encode(f), ordered.Encode(g)), cmp.Compare(f, g); got != want {
			t.Fatalf("%g and %g compare as %d", f, g, got)
		}
	}
}

func TestValue_Text(t *testing.T) {
	for want, v := range map[string]any{
		"": nil, "true": true, "false": false, "-5": int64(-5), "9223372036854775807": int64(math.MaxInt64),
		"-9223372036854775808": int64(math.MinInt64), "9007199254740993": int64(1<<53 + 1),
		"1.5": 1.5, "3": 3.0, "1e+300": 1e300, "2026-01-02T03:04:05.000000006Z": time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), "text": "text",
		strings.Repeat("x", 511): strings.Repeat("x", 511) + "ä",
	} {
		if got := ordered.Encode(v).Text(); got != want {
			t.Errorf("%v is told as %q, want %q", v, got, want)
		}
	}
	for _, foreign := range []ordered.Value{"\x01", "\x02ab", "\x03", "\x09x"} {
		if got := foreign.Text(); got != "" {
			t.Errorf("%q is told as %q", foreign, got)
		}
	}
}

// TestSet compares sets of intervals with their members, value by value.
func TestSet(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	universe := []ordered.Value{""}
	for i := range int64(9) {
		universe = append(universe, ordered.Encode(i))
	}
	universe = append(universe, ordered.Encode("later"))
	type either struct {
		set   ordered.Set
		holds func(ordered.Value) bool
	}
	one := func() either {
		v := ordered.Encode(random.Int64N(9))
		typed := func(x ordered.Value) bool { return x != "" && x[0] == v[0] }
		return []either{
			{ordered.Union(ordered.Exactly(v)), func(x ordered.Value) bool { return x == v }},
			{ordered.Not(v), func(x ordered.Value) bool { return x != v }},
			{ordered.Union(ordered.After(v)), func(x ordered.Value) bool { return typed(x) && x > v }},
			{ordered.Union(ordered.From(v)), func(x ordered.Value) bool { return typed(x) && x >= v }},
			{ordered.Union(ordered.Below(v)), func(x ordered.Value) bool { return typed(x) && x < v }},
			{ordered.Union(ordered.UpTo(v)), func(x ordered.Value) bool { return typed(x) && x <= v }},
			{ordered.All(), func(ordered.Value) bool { return true }},
		}[random.IntN(7)]
	}
	for range 3000 {
		a, b := one(), one()
		both, any := a.set.And(b.set), ordered.Union(slices.Concat(a.set, b.set)...)
		for _, x := range universe {
			if both.Has(x) != (a.holds(x) && b.holds(x)) || any.Has(x) != (a.holds(x) || b.holds(x)) {
				t.Fatalf("%q and %q: %q is %q, %q is %q, of %q", a.set, b.set, "both", both, "any", any, x)
			}
		}
		for _, s := range []ordered.Set{both, any} {
			for i := range s {
				if i > 0 && (s[i-1].To == "" || s[i-1].To >= s[i].From) {
					t.Fatalf("the intervals of %q meet", s)
				}
			}
		}
	}
}
