// Package typo measures how far a name is from the one that was probably meant.
package typo

import (
	"slices"
	"strings"
)

// Nearest returns the one of the known names that name is a typing mistake of, or nothing:
// two letters off, in names of fewer than twelve one, or two that changed places. The case
// of letters does not count.
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

// Distance is the number of bytes to insert, remove or replace to make b of a.
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
