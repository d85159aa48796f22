package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"
)

// setFeatures sets features of the machinery, whose gate is the process's.
func setFeatures(gate featuregate.MutableFeatureGate, features map[string]bool) error {
	known := gate.GetAll()
	for _, name := range slices.Sorted(maps.Keys(features)) {
		if _, ok := known[featuregate.Feature(name)]; !ok {
			var names []string
			for feature := range known {
				names = append(names, string(feature))
			}
			slices.Sort(names)
			return fmt.Errorf("--feature-gates: there is no feature %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	if err := gate.SetFromMap(features); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}
