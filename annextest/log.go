package annextest

import "github.com/annexapi/annex/internal/testing/testlog"

// Main runs the tests of a package and returns their exit code. What servers log is kept back: of a run that fails, the last
// 100 lines are printed, of others nothing. With ANNEX_TEST_LOG set in the environment, all is printed at once. It is called
// once for a process, and not while a test runs.
//
//	func TestMain(m *testing.M) { os.Exit(annextest.Main(m)) }
func Main(m interface{ Run() int }) int { return testlog.Quiet(m).Run() }
