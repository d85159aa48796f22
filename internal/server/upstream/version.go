package upstream

import (
	"cmp"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"

	"github.com/annexapi/annex/internal/model/define"
)

// serverVersion is the version that /version shows: the Kubernetes release of the API machinery, on which clients
// base decisions, marked as Annex's. The part behind the release is build metadata, which no client compares. A
// program may show its own version instead.
type serverVersion struct {
	basecompatibility.MutableEffectiveVersion
	server *define.Server
}

// EffectiveVersion returns the version that a server has and shows.
func EffectiveVersion(s *define.Server) basecompatibility.EffectiveVersion {
	return serverVersion{compatibility.DefaultBuildEffectiveVersion(), s}
}

func (v serverVersion) Info() *version.Info {
	info := v.MutableEffectiveVersion.Info()
	if own, err := utilversion.ParseSemantic(v.server.Version); err == nil && v.server.OwnVersion {
		info.Major, info.Minor, info.GitVersion = strconv.Itoa(int(own.Major())), strconv.Itoa(int(own.Minor())), v.server.Version
		info.EmulationMajor, info.EmulationMinor, info.MinCompatibilityMajor, info.MinCompatibilityMinor = "", "", "", ""
		return builtInfo(info)
	}
	info.GitVersion = Version() + "." + v.server.Name
	if v.server.Version != "" {
		info.GitVersion += "." + notMetadata.ReplaceAllLiteralString(v.server.Version, "-")
	}
	return builtInfo(info)
}

func builtInfo(info *version.Info) *version.Info {
	if build, ok := debug.ReadBuildInfo(); ok {
		info.GitCommit, info.GitTreeState, info.BuildDate = builtFrom(build)
	}
	return info
}

// builtFrom returns the commit that a program was built from, whether the checkout had changes, and the commit's
// time, which is the closest to a build date that a reproducible build has. All of them are empty if the program was
// not built in a checkout.
func builtFrom(build *debug.BuildInfo) (commit, treeState, date string) {
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			commit = setting.Value
		case "vcs.modified":
			treeState = map[string]string{"false": "clean", "true": "dirty"}[setting.Value]
		case "vcs.time":
			date = setting.Value
		}
	}
	return commit, treeState, date
}

// notMetadata matches characters that are not allowed in the build metadata of a semantic version.
var notMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]`)

// About returns the title and the version of a program for OpenAPI.
func About(s *define.Server) (title, version string) {
	title, version = cmp.Or(s.Title, s.Name), s.Version
	if info, ok := debug.ReadBuildInfo(); ok && version == "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	return title, cmp.Or(version, "unversioned")
}

// Version returns the Kubernetes release of the API machinery, marked as Annex's.
func Version() string { return "v" + release() + "+annex" }

// release returns the Kubernetes release of the linked API machinery, such as 1.37.2. The staging modules have the
// version 0.37.2 for it.
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
