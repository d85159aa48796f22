package builtin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/model/define"
)

// wideNames are the keys that apply to many kinds.
var wideNames = []string{"api/all", "api/ga", "api/beta", "api/alpha"}

// turnOnAndOff removes the kinds that a runtime configuration turns off. It also removes kinds of beta and alpha
// versions unless the configuration turns them on.
func turnOnAndOff(groups []define.Group, config map[string]bool, elsewhere func(key string) bool) error {
	known, versions := map[string]bool{}, map[string]bool{}
	off := map[*define.Kind]bool{}
	for _, g := range groups {
		for _, k := range g.Kinds {
			names := configNames(g, k)
			versions[names[len(names)-2]] = true
			stability := stabilityOf(k)
			on := stability == "api/ga"
			for _, name := range append([]string{"api/all", stability}, names...) {
				known[name] = true
				if value, said := config[name]; said {
					on = value
				}
			}
			off[k] = !on
		}
	}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		if !slices.Contains(wideNames, name) && !known[name] && !elsewhere(name) {
			return fmt.Errorf("%s: unknown API of the control plane; APIs are api/all, api/ga, %s, and kinds of these such as "+
				"api/v1/secrets", name, strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
		}
	}
	for i := range groups {
		groups[i].Kinds = slices.DeleteFunc(groups[i].Kinds, func(k *define.Kind) bool { return off[k] || k.AliasOf != nil && off[k.AliasOf] })
	}
	return nil
}

// stabilityOf returns the wide name of the version of a kind.
func stabilityOf(k *define.Kind) string {
	switch version := k.Versions[0].Facts().GroupVersion.Version; {
	case strings.Contains(version, "beta"):
		return "api/beta"
	case strings.Contains(version, "alpha"):
		return "api/alpha"
	}
	return "api/ga"
}

// configNames returns the keys of a kind in a runtime configuration, the longest last.
func configNames(g define.Group, k *define.Kind) []string {
	version := k.Versions[0].Facts().GroupVersion.Version
	if g.Name == "" {
		return []string{version, "api/" + version, "api/" + version + "/" + k.Resource}
	}
	return []string{g.Name + "/" + version, g.Name + "/" + version + "/" + k.Resource}
}
