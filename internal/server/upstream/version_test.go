package upstream

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/model/define"
)

func TestBuiltFrom_settings(t *testing.T) {
	t.Parallel()
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, test := range []struct {
		settings                []debug.BuildSetting
		commit, treeState, date string
	}{
		{nil, "", "", ""},
		{[]debug.BuildSetting{setting("vcs", "git"), setting("vcs.revision", "abc"), setting("vcs.modified", "false"),
			setting("vcs.time", "2026-11-22T15:04:05Z")}, "abc", "clean", "2026-11-22T15:04:05Z"},
		{[]debug.BuildSetting{setting("vcs.revision", "abc"), setting("vcs.modified", "true")}, "abc", "dirty", ""},
	} {
		commit, treeState, date := builtFrom(&debug.BuildInfo{Settings: test.settings})
		if commit != test.commit || treeState != test.treeState || date != test.date {
			t.Errorf("%v: %q, %q, %q", test.settings, commit, treeState, date)
		}
	}
}

func TestEffectiveVersion_info(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"": "+annex.shop", "v1.2.0+build_7": "+annex.shop.v1.2.0-build-7"} {
		info := EffectiveVersion(&define.Server{Name: "shop", Version: version}).Info()
		if !strings.HasPrefix(info.GitVersion, "v1.") || !strings.HasSuffix(info.GitVersion, want) {
			t.Errorf("%q: %s", version, info.GitVersion)
		}
		if !strings.HasPrefix(info.GitVersion, "v"+info.Major+"."+info.Minor+".") || info.GoVersion == "" || info.Compiler == "" ||
			info.Platform == "" ||
			info.EmulationMajor != info.Major ||
			info.EmulationMinor != info.Minor {
			t.Errorf("%q: %+v", version, info)
		}
	}
}
