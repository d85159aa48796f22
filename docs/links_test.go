// Package docs checks the project's pages.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = ".."

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	code    = regexp.MustCompile("``[^\n]+?``|`[^`\n]+`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	mention = regexp.MustCompile(`\b(?:docs|samples|e2e|cmd|store|bench)/[\w./-]*\.md\b`)
)

// treeFiles calls check with the path and the text of each file of the repository whose
// name ends with suffix.
func treeFiles(t *testing.T, suffix string, check func(path, text string)) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() &&
			(entry.Name() == "testdata" || entry.Name() == "data" || entry.Name() == ".git" || entry.Name() == "bin" ||
				entry.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() || !strings.HasSuffix(path, suffix) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found++
		check(path, string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Fatalf("there are no files *%s below %s", suffix, root)
	}
}

// anchors are the names by which a page's headings can be linked to, as GitHub makes
// them.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.ToLower(link.ReplaceAllString(match[1], "]"))
		name = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`).ReplaceAllString(name, "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}

func TestLinks_resolve(t *testing.T) {
	t.Parallel()
	pages := map[string]map[string]bool{}
	treeFiles(t, ".md", func(path, text string) { pages[filepath.Clean(path)] = anchors(text) })
	treeFiles(t, ".md", func(path, text string) {
		text = code.ReplaceAllString(fence.ReplaceAllString(text, ""), "code")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(match[1], "#")
			target := filepath.Clean(path)
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, match[1])
				continue
			}
			if names, isPage := pages[target]; anchor != "" && isPage && !names[anchor] {
				t.Errorf("%s links to %s: the page has no such heading", path, match[1])
			}
		}
	})
}

// Comments and messages name pages, too.
func TestPages_namedInSource_exist(t *testing.T) {
	t.Parallel()
	treeFiles(t, ".go", func(path, text string) {
		for _, name := range mention.FindAllString(text, -1) {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), name)); err != nil {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	})
}

// A page that its index does not name is not found.
func TestIndex_hasEveryTask(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("howto/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("howto/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("howto/README.md does not link to %s", name)
		}
	}
}
