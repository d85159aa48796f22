package upstream

import (
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
)

// serverVersion is what /version shows: the Kubernetes release whose API
// machinery this is, since that is what clients decide by, marked as ours.
type serverVersion struct {
	basecompatibility.MutableEffectiveVersion
}

// EffectiveVersion is the version that a server has and shows.
func EffectiveVersion() basecompatibility.EffectiveVersion {
	return serverVersion{compatibility.DefaultBuildEffectiveVersion()}
}

func (v serverVersion) Info() *version.Info {
	info := v.MutableEffectiveVersion.Info()
	info.GitVersion = Version()
	info.GitCommit, info.GitTreeState, info.BuildDate = "", "", ""
	return info
}

// Version is what /version shows as the server's version.
func Version() string { return "v" + release() + "+annex" }

// release is the Kubernetes release of the API machinery linked in, such as
// 1.37.2: the staging modules count 0.37.2 for it.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if rest, found := strings.CutPrefix(m.Version, "v0."); m.Path == "k8s.io/apiserver" && found {
				return "1." + rest
			}
		}
	}
	return baseversion.DefaultKubeBinaryVersion + ".0"
}
