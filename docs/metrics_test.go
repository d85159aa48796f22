package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Operators find out from the guide which metrics there are.
func TestGuide_namesEveryMetric(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("guides/production.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`"(annex_[a-z_]+[a-z])"|newMetric\(\s*"([a-z_]+)"`)
	metrics := map[string]bool{}
	treeFiles(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, "_test.go") || !strings.Contains(text, "prometheus.New") {
			return
		}
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			name := match[1]
			if name == "" {
				name = "annex_storage_" + match[2]
			}
			metrics[name] = true
			if !strings.Contains(string(guide), "| `"+name+"` |") {
				t.Errorf("%s exposes %s, which is not in the table of guides/production.md", path, name)
			}
		}
	})
	for _, match := range regexp.MustCompile("(?m)^\\| `(annex_[a-z_]+)` \\|").FindAllStringSubmatch(string(guide), -1) {
		if !metrics[match[1]] {
			t.Errorf("guides/production.md has %s, which no server exposes", match[1])
		}
	}
}
