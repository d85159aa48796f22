package cli

import (
	"strings"
	"testing"

	"k8s.io/component-base/featuregate"

	"github.com/annexapi/annex/config"
)

func TestSetFeatures(t *testing.T) {
	t.Parallel()
	gate := featuregate.NewFeatureGate()
	if err := gate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		"Alpha": {
			PreRelease: featuregate.Alpha,
		},
		"Beta":   {Default: true, PreRelease: featuregate.Beta},
		"Locked": {Default: true, LockToDefault: true, PreRelease: featuregate.GA},
	}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		features map[string]bool
		want     string
	}{
		{map[string]bool{"Alpha": true, "Gamma": true}, `--feature-gates: unknown feature "Gamma"; known features: AllAlpha, AllBeta, Alpha, ` +
			`Beta, FastPath, Locked`},
		{map[string]bool{"Locked": false}, "--feature-gates: cannot set feature gate Locked to false, feature is locked to true"},
	} {
		if err := setFeatures(gate.DeepCopy(), test.features, &config.Options{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v", test.features, err)
		}
	}
	if gate.Enabled("Alpha") || !gate.Enabled("Beta") {
		t.Error("a refused feature is set")
	}
	for _, test := range []struct {
		on          bool
		given, want *bool
	}{{false, nil, new(false)}, {true, nil, nil}, {false, new(true), new(true)}} {
		options := config.Options{PriorityAndFairness: test.given}
		if err := setFeatures(gate.DeepCopy(), map[string]bool{"APIPriorityAndFairness": test.on}, &options); err != nil {
			t.Error(err)
		}
		if got := options.PriorityAndFairness; (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("APIPriorityAndFairness=%v: %v, want %v", test.on, got, test.want)
		}
	}
	var options config.Options
	features := map[string]bool{"Alpha": true, "Beta": false, "Locked": true, "FastPath": false}
	err := setFeatures(gate, features, &options)
	if err != nil || !gate.Enabled("Alpha") || gate.Enabled("Beta") || !options.DisableFastPath {
		t.Errorf("Alpha %t, Beta %t, fast path disabled %t, %v", gate.Enabled("Alpha"), gate.Enabled("Beta"), options.DisableFastPath, err)
	}
	features["FastPath"] = true
	if err := setFeatures(gate, features, &options); err != nil || options.DisableFastPath {
		t.Errorf("fast path disabled %t, %v", options.DisableFastPath, err)
	}
}
