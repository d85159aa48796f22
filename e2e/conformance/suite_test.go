package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	_ "k8s.io/kubernetes/test/e2e/apimachinery" // the tests
	"k8s.io/kubernetes/test/e2e/framework"
)

// suite configures the run of upstream's tests in a process. A test passes it to a program of its own, because the
// framework has one configuration and one run for each process.
type suite struct {
	Kubeconfig string
	Kubectl    string
	Only       string   // a regular expression for the rest of the names of tests, after owner; empty is all
	Skip       []string // regular expressions for the names of tests
	List       bool     // list the tests, and run none
	Report     string   // the file for the outcomes
}

// owner begins the names of the tests that are run. The package of upstream's tests imports tests of other owners.
const owner = "[sig-api-machinery] "

// outcome is the outcome of a test.
type outcome struct {
	Name    string
	State   string // in ginkgo's terms
	Message string // the reason why it failed, or why upstream's code skipped it
	Seconds float64
	Log     string // of a failed test
}

// failed reports whether the test failed; a skipped or unselected test did not.
func (o outcome) failed() bool {
	var state types.SpecState
	return state.UnmarshalJSON(fmt.Appendf(nil, "%q", o.State)) != nil || state.Is(types.SpecStateFailureStates)
}

// runner receives ginkgo's overall result, which the outcomes contain as well.
type runner struct{ failed bool }

func (r *runner) Fail() { r.failed = true }

// run runs the suite in this process, once.
func (s suite) run() error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError) // they have the framework's defaults
	flags.SetOutput(io.Discard)
	framework.RegisterCommonFlags(flags)
	framework.RegisterClusterFlags(flags)
	if err := flags.Parse([]string{
		"--kubeconfig", s.Kubeconfig, "--kubectl-path", s.Kubectl, "--provider", "skeleton",
		"--dump-logs-on-failure=false", // they are of pods and nodes
	}); err != nil {
		return err
	}
	framework.AfterReadingAllFlags(&framework.TestContext) // it previews all tests, which would be reported, too
	reported := errors.New("the suite did not report")
	ginkgo.ReportAfterSuite("outcomes", func(report ginkgo.Report) { reported = s.write(report.SpecReports) })
	if s.List {
		return s.write(ginkgo.PreviewSpecs("conformance").SpecReports)
	}
	gomega.RegisterFailHandler(framework.Fail)
	config, reporter := ginkgo.GinkgoConfiguration()
	config.FocusStrings, config.SkipStrings = []string{regexp.QuoteMeta(owner) + ".*(?:" + s.Only + ")"}, s.Skip
	reporter.NoColor, reporter.Verbose = true, true
	ginkgo.RunSpecs(&runner{}, "conformance", config, reporter)
	return reported
}

func (s suite) write(specs []types.SpecReport) error {
	var outcomes []outcome
	for _, spec := range specs {
		if !strings.HasPrefix(spec.FullText(), owner) && !spec.State.Is(types.SpecStateFailureStates) {
			continue
		}
		o := outcome{Name: spec.FullText(), State: spec.State.String(), Message: spec.Failure.Message, Seconds: spec.RunTime.Seconds()}
		if o.failed() {
			o.Log = spec.CapturedGinkgoWriterOutput
		}
		outcomes = append(outcomes, o)
	}
	encoded, err := json.MarshalIndent(outcomes, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(s.Report, encoded, 0o600)
}
