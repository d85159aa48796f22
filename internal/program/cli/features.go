package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"

	"github.com/annexapi/annex/config"
)

// fastPath is the server's only feature. It is an option of one server, while upstream's feature gate is global to
// the process.
const fastPath = "FastPath"

// fairness is a former feature of upstream's, which manifests of older servers turn off. It is an option here.
const fairness = "APIPriorityAndFairness"

// setFeatures sets the features of upstream's gate and of the server.
func setFeatures(gate featuregate.MutableFeatureGate, features map[string]bool, options *config.Options) error {
	if on, given := features[fastPath]; given {
		options.DisableFastPath = !on
		features = maps.Clone(features)
		delete(features, fastPath)
	}
	if on, given := features[fairness]; given {
		if options.PriorityAndFairness == nil && !on {
			options.PriorityAndFairness = &on
		}
		features = maps.Clone(features)
		delete(features, fairness)
	}
	known := gate.GetAll()
	for _, name := range slices.Sorted(maps.Keys(features)) {
		if _, ok := known[featuregate.Feature(name)]; !ok {
			names := []string{fastPath}
			for feature := range known {
				names = append(names, string(feature))
			}
			slices.Sort(names)
			return fmt.Errorf("--feature-gates: unknown feature %q; known features: %s", name, strings.Join(names, ", "))
		}
	}
	if err := gate.SetFromMap(features); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}
