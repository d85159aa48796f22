package envtest_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/workloads/envtest"
)

// A suite wraps the configuration of its environment once. Each test then has faults and a report of its own.
func ExampleEnvironment_faults() {
	var (
		faults annextest.Faults
		report annextest.Report
	)
	test := func(t *testing.T) {
		environment := &envtest.Environment{}
		config, err := environment.Start()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := environment.Stop(); err != nil { // after the report is written
				t.Error(err)
			}
		})
		config = report.Wrap(faults.Wrap(config))

		report.OnFailure(t)
		faults.On(t, "update,patch", "deployments/status").First(2).Conflict()
		c, err := client.New(config, client.Options{}) // or ctrl.NewManager
		_, _ = c, err
	}
	_ = test // go test calls it
}
