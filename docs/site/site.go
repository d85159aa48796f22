package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// repository is the address of files that are no part of the site.
const repository = "https://github.com/annexapi/annex"

// contents is the page whose sections and links are the navigation.
const contents = "docs/README.md"

//go:embed page.html style.css script.js
var assets embed.FS

// page is a page of the site. Paths are relative to the checkout, with slashes.
type page struct {
	source string // such as docs/howto/README.md
	target string // such as docs/howto/index.html
	title  string
	parsed *parsed
}

// site holds all pages of a checkout.
type site struct {
	root  string
	pages map[string]*page // by source
	files map[string]bool  // images and other files that pages show or link to
	nav   []group
	index index
}

// group is a heading of the navigation with its pages.
type group struct {
	Title string
	Links []link
}

type link struct {
	Title  string
	source string
	// Groups are the groups of an index page, which the navigation unfolds.
	Groups []group
}

// read parses the pages of a checkout, and resolves their links. It returns an error for each link to nothing.
func read(root string) (*site, error) {
	s := &site{root: root, pages: map[string]*page{}, files: map[string]bool{}}
	sources, err := sourcesOf(root)
	if err != nil {
		return nil, err
	}
	for _, source := range sources {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(source)))
		if err != nil {
			return nil, err
		}
		p := &page{source: source, target: targetOf(source), parsed: parse(text)}
		if p.title = p.parsed.title; p.title == "" {
			return nil, fmt.Errorf("%s has no heading", source)
		}
		s.pages[source] = p
	}
	var mistakes []error
	for _, source := range slices.Sorted(maps.Keys(s.pages)) {
		p := s.pages[source]
		p.parsed.relink(func(to string) string {
			href, err := s.resolve(p, to)
			if err != nil {
				mistakes = append(mistakes, err)
			}
			return href
		})
		s.index.add(p)
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	if s.nav, err = s.navigation(contents, true); err != nil {
		return nil, err
	}
	return s, nil
}

// sourcesOf returns the Markdown files of a site: those of the root, of docs, and the descriptions of samples.
func sourcesOf(root string) ([]string, error) {
	var found []string
	for _, pattern := range []string{"*.md", "samples/*/README.md"} {
		match, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, match...)
	}
	err := fs.WalkDir(os.DirFS(root), "docs", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case path.Ext(name) == ".md":
			found = append(found, name)
		}
		return nil
	})
	return found, err
}

func targetOf(source string) string {
	dir, name := path.Split(source)
	if name == "README.md" {
		return dir + "index.html"
	}
	return dir + strings.TrimSuffix(name, ".md") + ".html"
}

// resolve returns the address in the site of a link in a page.
func (s *site) resolve(from *page, to string) (string, error) {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return to, nil
	}
	file, anchor, _ := strings.Cut(to, "#")
	source := from.source
	if file != "" {
		source = path.Join(path.Dir(from.source), file)
	}
	if s.pages[source] == nil && s.pages[path.Join(source, "README.md")] != nil {
		source = path.Join(source, "README.md")
	}
	if anchor != "" {
		anchor = "#" + anchor
	}
	if p := s.pages[source]; p != nil {
		if anchor != "" && !p.parsed.anchors[anchor[1:]] {
			return "", fmt.Errorf("%s links to %s: the page has no such heading", from.source, to)
		}
		if p == from {
			return anchor, nil
		}
		return relative(from.target, p.target) + anchor, nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(source)))
	switch {
	case err != nil || !filepath.IsLocal(filepath.FromSlash(source)):
		return "", fmt.Errorf("%s links to %s, which does not exist", from.source, to)
	case info.IsDir():
		return repository + "/tree/main/" + source, nil
	case strings.HasPrefix(source, "docs/") && slices.Contains([]string{".png", ".webp", ".svg", ".txt"}, path.Ext(source)):
		s.files[source] = true
		return relative(from.target, source) + anchor, nil
	}
	return repository + "/blob/main/" + source + anchor, nil
}

// relative returns the address of a file of the site in another one.
func relative(from, to string) string {
	above := strings.Repeat("../", strings.Count(from, "/"))
	dir := path.Dir(from) + "/"
	for dir != "./" {
		if rest, ok := strings.CutPrefix(to, dir); ok {
			return strings.Repeat("../", strings.Count(path.Dir(from)+"/", "/")-strings.Count(dir, "/")) + rest
		}
		dir = path.Dir(strings.TrimSuffix(dir, "/")) + "/"
	}
	return above + to
}

// navigation returns the groups of an index page: its headings, or bold lines, with the links of the tables and lists below them. Links
// to other index pages are unfolded.
func (s *site) navigation(source string, unfold bool) ([]group, error) {
	p := s.pages[source]
	if p == nil {
		return nil, fmt.Errorf("there is no page %s, which has the navigation", source)
	}
	var groups []group
	for _, entry := range p.parsed.outline {
		if entry.link == "" {
			groups = append(groups, group{Title: entry.text})
			continue
		}
		file, _, _ := strings.Cut(entry.link, "#")
		target := path.Join(path.Dir(source), file)
		if s.pages[target] == nil || strings.Contains(entry.link, "://") {
			continue
		}
		if len(groups) == 0 {
			groups = append(groups, group{})
		}
		l := link{Title: entry.text, source: target}
		if unfold && target != source && isIndex(target) {
			var err error
			if l.Groups, err = s.navigation(target, false); err != nil {
				return nil, err
			}
		}
		last := &groups[len(groups)-1]
		last.Links = append(last.Links, l)
	}
	return slices.DeleteFunc(groups, func(g group) bool { return len(g.Links) == 0 }), nil
}

// isIndex reports whether the navigation unfolds a page. Decisions are too many.
func isIndex(source string) bool {
	dir, name := path.Split(source)
	return name == "README.md" && strings.HasPrefix(dir, "docs/") && dir != "docs/decisions/"
}

// inOrder returns the pages of the navigation, in its order.
func (s *site) inOrder() []*page {
	var order []*page
	var walk func(groups []group)
	walk = func(groups []group) {
		for _, g := range groups {
			for _, l := range g.Links {
				if p := s.pages[l.source]; !slices.Contains(order, p) {
					order = append(order, p)
				}
				walk(l.Groups)
			}
		}
	}
	walk(s.nav)
	return order
}

// view is what the template of a page reads.
type view struct {
	Title, Root, Source string
	Body                template.HTML
	Nav                 []navGroup
	Outline             []heading
	Previous, Next      *place
}

type place struct{ Title, Href string }

type navGroup struct {
	Title string
	Links []navLink
}

type navLink struct {
	Title, Href string
	Current     bool
	Open        bool // this page is among its groups
	Groups      []navGroup
}

// write writes the site, and deletes an earlier one of the same folder.
func (s *site) write(out string) error {
	entries, err := os.ReadDir(out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, missing := os.Stat(filepath.Join(out, "index.js")); missing != nil && len(entries) > 0 {
		return fmt.Errorf("%s has files that are no site: choose an empty folder", out)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(out, e.Name())); err != nil {
			return err
		}
	}
	layout, err := template.ParseFS(assets, "page.html")
	if err != nil {
		return err
	}
	order := s.inOrder()
	for _, p := range s.pages {
		var text bytes.Buffer
		if err := layout.Execute(&text, s.view(p, order)); err != nil {
			return fmt.Errorf("%s: %w", p.source, err)
		}
		if err := writeFile(out, p.target, text.Bytes()); err != nil {
			return err
		}
	}
	for file := range s.files {
		content, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		if err := writeFile(out, file, content); err != nil {
			return err
		}
	}
	for _, name := range []string{"style.css", "script.js"} {
		content, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		if err := writeFile(out, name, content); err != nil {
			return err
		}
	}
	found, err := json.Marshal(&s.index)
	if err != nil {
		return err
	}
	// A script, because a page that is opened from a folder may not fetch files.
	return writeFile(out, "index.js", append(append([]byte("window.siteIndex="), found...), ";\n"...))
}

func writeFile(out, name string, content []byte) error {
	file := filepath.Join(out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

func (s *site) view(p *page, order []*page) view {
	v := view{
		Title: p.title, Root: strings.Repeat("../", strings.Count(p.target, "/")), Source: repository + "/blob/main/" + p.source,
		Body: template.HTML(p.parsed.html()), Outline: p.parsed.headings, //nolint:gosec // the renderer escapes the text of pages
	}
	v.Nav, _ = s.viewNav(p, s.nav)
	if at := slices.Index(order, p); at >= 0 {
		if at > 0 {
			v.Previous = &place{order[at-1].title, relative(p.target, order[at-1].target)}
		}
		if at+1 < len(order) {
			v.Next = &place{order[at+1].title, relative(p.target, order[at+1].target)}
		}
	}
	return v
}

// viewNav returns the navigation as a page shows it, and whether it has the page.
func (s *site) viewNav(p *page, groups []group) (shown []navGroup, has bool) {
	for _, g := range groups {
		n := navGroup{Title: g.Title}
		for _, l := range g.Links {
			to := s.pages[l.source]
			one := navLink{Title: l.Title, Href: relative(p.target, to.target), Current: to == p}
			one.Groups, one.Open = s.viewNav(p, l.Groups)
			one.Open = one.Open || one.Current
			has = has || one.Open
			n.Links = append(n.Links, one)
		}
		shown = append(shown, n)
	}
	return shown, has
}
