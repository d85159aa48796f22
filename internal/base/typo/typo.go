// Package typo measures the distance between a mistyped name and the names that it may stand for.
package typo

import (
	"slices"
	"strings"
)

// Nearest returns the known name that name is probably a mistyped form of, or an empty string: the two differ by at
// most two letters, or, in names of fewer than twelve letters, by one letter or two swapped ones. The case of letters
// does not count.
func Nearest(name string, known []string) string {
	best, least := "", 3
	lower := strings.ToLower(name)
	for _, other := range known {
		to := strings.ToLower(other)
		d := Distance(lower, to)
		if len(other) < 12 && d > 1 && !slices.Equal(letters(lower), letters(to)) {
			continue
		}
		if d < least || d == least && best != "" && other < best {
			best, least = other, d
		}
	}
	return best
}

func letters(name string) []byte {
	sorted := []byte(name)
	slices.Sort(sorted)
	return sorted
}

// Distance returns the number of bytes to insert, remove or replace to turn a into b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
