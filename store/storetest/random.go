package storetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Trials returns the number of trials of a random test: the value of the environment variable, or fallback if it is
// not set. With -short it is a twentieth of fallback, and at least one.
func Trials(t testing.TB, variable string, fallback int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		if testing.Short() {
			return max(1, fallback/20)
		}
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// Seeded returns a random source and logs its seed. Set ANNEX_SEED to that seed to repeat a run.
func Seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("ANNEX_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("ANNEX_SEED: %v", err)
		}
	}
	t.Logf("ANNEX_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
