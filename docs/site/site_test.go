package main

import (
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// checkout writes files, and returns their folder.
func checkout(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := writeFile(root, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func written(t *testing.T, root string) string {
	t.Helper()
	s, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "site")
	for range 2 { // the second replaces the first
		if err := s.write(out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func content(t *testing.T, path ...string) string {
	t.Helper()
	read, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(read)
}

var (
	address = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	loads   = regexp.MustCompile(`<(?:script|img|link|iframe|source|video)[^>]*(?:src|href)="([^"]*)"`)
	id      = regexp.MustCompile(` id="([^"]*)"`)
)

// TestSite_ofThisCheckout asserts that each address of the project's site leads to a file and an anchor, that pages load
// nothing from elsewhere, and that each page can be reached by links.
func TestSite_ofThisCheckout(t *testing.T) {
	out := written(t, "../..")
	pages := map[string]string{}
	if err := filepath.Walk(out, func(path string, _ os.FileInfo, err error) error {
		if filepath.Ext(path) == ".html" {
			name, _ := filepath.Rel(out, path)
			pages[filepath.ToSlash(name)] = content(t, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	anchors := map[string][]string{}
	for name, page := range pages {
		for _, match := range id.FindAllStringSubmatch(page, -1) {
			if slices.Contains(anchors[name], match[1]) {
				t.Errorf("%s has the anchor %s twice", name, match[1])
			}
			anchors[name] = append(anchors[name], match[1])
		}
	}
	linked := map[string]bool{"index.html": true}
	for name, page := range pages {
		for _, match := range loads.FindAllStringSubmatch(page, -1) {
			if strings.Contains(match[1], "//") {
				t.Errorf("%s loads %s", name, match[1])
			}
		}
		for _, match := range address.FindAllStringSubmatch(page, -1) {
			to := html.UnescapeString(match[1])
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			target := name
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
				linked[target] = linked[target] || target != name
			}
			if _, err := os.Stat(filepath.Join(out, target)); err != nil {
				t.Errorf("%s leads to %s, which does not exist", name, to)
			} else if anchor != "" && !slices.Contains(anchors[target], anchor) {
				t.Errorf("%s leads to %s: there is no such anchor", name, to)
			}
		}
	}
	for name := range pages {
		if !linked[name] {
			t.Errorf("no page links to %s", name)
		}
	}
	var found index
	script := content(t, out, "index.js")
	if err := json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(script, "window.siteIndex="), ";\n")), &found); err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]string{
		"kine": "docs/howto/sql.html", "secure-port": "docs/reference/cli.html", "krew": "docs/maintaining/releasing.html",
	} {
		if !slices.ContainsFunc(sectionsOf(found, word), func(at string) bool { return strings.HasPrefix(at, want) }) {
			t.Errorf("the search for %q does not find %s, but %s", word, want, sectionsOf(found, word))
		}
	}
	t.Logf("%d pages, an index of %d kB with %d words", len(pages), len(script)/1000, len(found.Words))
	if limit := 3_000_000; len(script) > limit {
		t.Errorf("the index of the search has %d bytes, more than %d", len(script), limit)
	}
}

// sectionsOf returns the addresses of the sections with a word.
func sectionsOf(x index, word string) []string {
	var found []string
	number := 0
	for _, step := range x.Words[word] {
		number += max(step, -step)
		found = append(found, x.Sections[number-1][2])
	}
	return found
}

func TestSite_ofASmallCheckout(t *testing.T) {
	out := written(t, checkout(t, map[string]string{
		"README.md": "# Shop\n\nSee [the pages](docs/README.md), [the code](main.go), [a folder](cmd), " +
			"[elsewhere](https://example.com).\n",
		"main.go":              "package main\n",
		"cmd/main.go":          "package main\n",
		"docs/README.md":       "# Pages\n\n**Start**\n\n- [Home](../README.md)\n- [How to](howto/README.md)\n",
		"docs/howto/README.md": "# How to\n\n## Orders\n\n| | |\n|---|---|\n| [Order](order.md) | [not this](../README.md) |\n",
		"docs/" + "howto/order.md": "# Order\n\n<!-- run: true -->\n```console\n$ shop order <b>\nordered\n```\n\n## A `flag`, twice\n\n" +
			"## A `flag`, twice\n\n[up](#a-flag-twice-1) ![a picture](../images/a.png)\n",
		"docs/images/a.png":          "PNG",
		"docs/" + "images/unused.md": "# Unused\n",
	}))
	home, order := content(t, out, "index.html"), content(t, out, "docs/howto/order.html")
	for _, want := range []string{
		`<a href="docs/index.html">the pages</a>`,
		`<a href="` + repository + `/blob/main/main.go">the code</a>`,
		`<a href="` + repository + `/tree/main/cmd">a folder</a>`,
		`<a href="https://example.com">elsewhere</a>`,
		`<a href="docs/howto/order.html">Order</a>`,
		`<a rel="next" href="docs/howto/index.html">`,
	} {
		if !strings.Contains(home, want) {
			t.Errorf("the first page has no %s:\n%s", want, home)
		}
	}
	for _, want := range []string{
		`<span class="prompt">$ </span><span class="command">shop order &lt;b&gt;</span>`,
		`<span class="output">ordered</span>`,
		`<h2 id="a-flag-twice">`, `<h2 id="a-flag-twice-1">`, `href="#a-flag-twice-1"`,
		`src="../images/a.png"`, `<a href="order.html" aria-current="page">Order</a>`, `<p class="group">Orders</p>`,
		`<title>Order · Annex</title>`,
	} {
		if !strings.Contains(order, want) {
			t.Errorf("the page has no %s:\n%s", want, order)
		}
	}
	if strings.Contains(order, "run: true") {
		t.Error("the page has the comment for its test")
	}
	if strings.Count(order, `href="../../index.html"`) != 2 {
		t.Error("the navigation has the second link of a row")
	}
}

func TestSite_refusesMistakes(t *testing.T) {
	index := map[string]string{"docs/README.md": "# Pages\n\n- [Home](../README.md)\n"}
	for name, test := range map[string]struct{ page, want string }{
		"a link to nothing": {"# Shop\n\n[gone](docs/gone.txt)\n", "README.md links to docs/gone.txt, which does not exist"},
		"a link out":        {"# Shop\n\n[out](../../secret)\n", "README.md links to ../../secret, which does not exist"},
		"a link to no heading": {"# Shop\n\n[gone](docs/README.md#gone)\n",
			"README.md links to docs/README.md#gone: the page has no such heading"},
		"no heading": {"Shop\n", "README.md has no heading"},
	} {
		index["README.md"] = test.page
		if _, err := read(checkout(t, index)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, not %q", name, err, test.want)
		}
	}
	if _, err := read(checkout(t, map[string]string{"README.md": "# Shop\n", "docs/" + "a.md": "# A\n"})); err == nil ||
		!strings.Contains(err.Error(), "there is no page docs/README.md") {
		t.Errorf("without navigation: %v", err)
	}
	folder := checkout(t, map[string]string{"letter.txt": "Dear Ada"})
	s, err := read(checkout(t, map[string]string{"README.md": "# Shop\n", "docs/README.md": "# Pages\n"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.write(folder); err == nil || !strings.Contains(err.Error(), "has files that are no site") {
		t.Errorf("a folder with other files: %v", err)
	}
}

func TestRelative_leadsFromPageToPage(t *testing.T) {
	for _, test := range []struct{ from, to, want string }{
		{"index.html", "docs/index.html", "docs/index.html"},
		{"docs/index.html", "index.html", "../index.html"},
		{"docs/howto/a.html", "docs/howto/b.html", "b.html"},
		{"docs/howto/a.html", "docs/b.html", "../b.html"},
		{"docs/howto/a.html", "docs/guides/b.html", "../guides/b.html"},
		{"docs/a.html", "docs/howto/b.html", "howto/b.html"},
		{"samples/a/index.html", "docs/b.html", "../../docs/b.html"},
	} {
		if got := relative(test.from, test.to); got != test.want {
			t.Errorf("from %s to %s: %s, not %s", test.from, test.to, got, test.want)
		}
	}
}

func TestCommentAt_findsComments(t *testing.T) {
	for _, test := range []struct {
		kind, text string
		want       int
	}{
		{"sh", "annex init   # creates", 10},
		{"sh", "# alone", 0},
		{"sh", `echo "a # b"`, -1},
		{"go", "\tx := 1 // one", 7},
		{"console", "$ a # b", -1},
	} {
		if got := commentAt(test.kind, test.text); got != test.want {
			t.Errorf("%s %q: %d, not %d", test.kind, test.text, got, test.want)
		}
	}
}
