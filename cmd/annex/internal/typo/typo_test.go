package typo_test

import (
	"testing"

	"github.com/annexapi/annex/cmd/annex/internal/typo"
)

func TestDistanceCountsLettersToInsertRemoveOrReplace(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"Minimum", "Minimum", 0},
		{"Minimun", "Minimum", 1},
		{"Minmum", "Minimum", 1},
		{"kitten", "sitting", 3},
		{"ab", "ba", 2},
	} {
		if got := typo.Distance(test.a, test.b); got != test.want {
			t.Errorf("from %q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
