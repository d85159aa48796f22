package main

import (
	"io"
	"slices"
	"testing"
)

func TestParse_counts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text              string
		passed, failed, skipped int
		failures                []string
	}{
		{"nothing", "PASS\n", 0, 0, 0, nil},
		{
			"tests without their parents",
			"=== RUN   TestA\n    --- PASS: TestA/one (0.00s)\n    --- FAIL: TestA/two (0.00s)\n--- FAIL: TestA (0.10s)\n" +
				"--- SKIP: TestB (0.00s)\n",
			1, 1, 1,
			[]string{"TestA/two"},
		},
		{
			"specs instead of the test that runs them",
			"\x1b[1mRan 3 of 5 Specs in 1.000 seconds\x1b[0m\n" +
				"\x1b[38;5;10mSUCCESS!\x1b[0m -- \x1b[1m3 Passed\x1b[0m | 0 Failed | 1 Pending | 1 Skipped\n" +
				"--- PASS: TestSuite (1.00s)\n--- PASS: TestOther (0.00s)\nPASS\n",
			4, 0, 2,
			nil,
		},
		{
			"failed specs",
			"Summarizing 1 Failure:\n  [FAIL] nothing\n\nSummarizing 1 Failure:\n  [FAIL] A thing [It] works\n  /a_test.go:1\n\n" +
				"Ran 2 of 2 Specs in 1 seconds\n" +
				"FAIL! -- 1 Passed | 1 Failed | 0 Pending | 0 Skipped\n--- FAIL: TestSuite (1.00s)\nFAIL\n",
			1, 1, 0,
			[]string{"TestSuite", "nothing", "A thing [It] works"},
		},
		{
			"a suite that ended before its specs",
			"FAIL! - Interrupted by Timeout -- 0 Passed | 0 Failed | 0 Pending | 7 Skipped\n--- FAIL: TestSuite (1.00s)\nFAIL\n",
			0, 0, 7,
			[]string{"TestSuite"},
		},
	} {
		got := parse(test.text)
		if got.passed != test.passed || got.failed != test.failed || got.skipped != test.skipped || !slices.Equal(got.failures, test.failures) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

func TestRun_mistakes(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nothing"}, {"-only", "("}, {"-only", "none", "-assets", t.TempDir()}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// Each suite has a name of its own, because logs and -only go by it.
func TestSuites_names(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, s := range suites {
		if seen[s.name()] {
			t.Errorf("two suites %s", s.name())
		}
		seen[s.name()] = true
	}
}
