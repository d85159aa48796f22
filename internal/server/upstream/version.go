package upstream

import (
	"cmp"
	"regexp"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"

	"github.com/annexapi/annex/internal/model/define"
)

// serverVersion is what /version shows: the Kubernetes release whose API
// machinery this is, since that is what clients decide by, marked as ours. What
// follows the release is build metadata, which no client compares.
type serverVersion struct {
	basecompatibility.MutableEffectiveVersion
	server *define.Server
}

// EffectiveVersion is the version that a server has and shows.
func EffectiveVersion(s *define.Server) basecompatibility.EffectiveVersion {
	return serverVersion{compatibility.DefaultBuildEffectiveVersion(), s}
}

func (v serverVersion) Info() *version.Info {
	info := v.MutableEffectiveVersion.Info()
	info.GitVersion = Version() + "." + v.server.Name
	if v.server.Version != "" {
		info.GitVersion += "." + notMetadata.ReplaceAllLiteralString(v.server.Version, "-")
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		info.GitCommit, info.GitTreeState, info.BuildDate = builtFrom(build)
	}
	return info
}

// builtFrom says what a program was built from: the commit, whether there were changes beside it,
// and its time, which is the build's as far as a build that can be repeated has one. All of them are
// empty if the program was not built in a checkout.
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

// notMetadata are the characters that the build metadata of a semantic version cannot have.
var notMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]`)

// About returns the title and the version of a program, as OpenAPI has them.
func About(s *define.Server) (title, version string) {
	title, version = cmp.Or(s.Title, s.Name), s.Version
	if info, ok := debug.ReadBuildInfo(); ok && version == "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	return title, cmp.Or(version, "unversioned")
}

// Version is the release of Kubernetes that this is made of, marked as ours.
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
