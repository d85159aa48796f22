package annextest

import "github.com/annexapi/annex/internal/testing/testlog"

// Main runs the tests of a package and returns their exit code. It holds back the servers' logs: if a test fails, the
// last 100 lines are printed, else nothing. If ANNEX_TEST_LOG is set in the environment, all lines are printed at
// once. A process may call Main once, and not while a test runs.
//
//	func TestMain(m *testing.M) { os.Exit(annextest.Main(m)) }
func Main(m interface{ Run() int }) int { return testlog.Quiet(m).Run() }
