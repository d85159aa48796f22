package main

import (
	"bytes"
	"fmt"
	"html"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extensionast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// parsed is the syntax tree of a page.
type parsed struct {
	source   []byte
	tree     ast.Node
	title    string
	headings []heading // below the title, of the second and third level
	anchors  map[string]bool
	outline  []outlined
	sections []section
}

type heading struct {
	Level        int
	Text, Anchor string
}

// outlined is a heading, a bold line, or the first link of an item or of a row of a table.
type outlined struct{ text, link string }

// section is the text below a heading, for the search.
type section struct {
	heading heading
	text    string
}

func parse(source []byte) *parsed {
	p := &parsed{source: source, anchors: map[string]bool{}}
	p.tree = markdown().Parser().Parse(text.NewReader(source))
	p.walk()
	return p
}

// markdown reads and writes pages as GitHub does. Raw HTML is left out: pages have comments alone.
func markdown() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(&blocks{}, 1))),
	)
}

func (p *parsed) walk() {
	current := &section{}
	seen := map[string]int{}
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			h := heading{n.Level, p.textOf(n), ""}
			h.Anchor = anchorOf(h.Text)
			if seen[h.Anchor]++; seen[h.Anchor] > 1 {
				h.Anchor += fmt.Sprintf("-%d", seen[h.Anchor]-1)
			}
			p.anchors[h.Anchor] = true
			n.SetAttributeString("id", []byte(h.Anchor))
			p.sections = append(p.sections, section{heading: h})
			current = &p.sections[len(p.sections)-1]
			switch {
			case n.Level == 1 && p.title == "":
				p.title = h.Text
			case n.Level <= 3:
				p.headings = append(p.headings, h)
			}
			if n.Level == 2 {
				p.outline = append(p.outline, outlined{text: h.Text})
			}
			return ast.WalkSkipChildren, nil
		case *ast.Paragraph:
			if bold, ok := n.FirstChild().(*ast.Emphasis); ok && bold.Level == 2 && bold == n.LastChild() {
				p.outline = append(p.outline, outlined{text: p.textOf(bold)})
			}
		case *ast.Link:
			if first := n.PreviousSibling() == nil; first && n.Parent() != nil && isItem(n.Parent()) {
				p.outline = append(p.outline, outlined{p.textOf(n), string(n.Destination)})
			}
		case *ast.Text:
			current.text += string(n.Value(p.source)) + " "
		case *ast.CodeSpan:
			current.text += p.textOf(n) + " "
			return ast.WalkSkipChildren, nil
		case *ast.FencedCodeBlock:
			current.text += string(n.Lines().Value(p.source)) + " "
		}
		return ast.WalkContinue, nil
	})
}

// isItem reports whether a node holds the text of an item of a list, or a cell of a table.
func isItem(n ast.Node) bool {
	return n.Kind() == ast.KindTextBlock && n.Parent().Kind() == ast.KindListItem ||
		n.Kind() == extensionast.KindTableCell && n.PreviousSibling() == nil
}

func (p *parsed) textOf(n ast.Node) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Value(p.source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)

// anchorOf returns the name by which GitHub links to a heading.
func anchorOf(heading string) string {
	return strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// relink replaces the targets of all links and images.
func (p *parsed) relink(address func(string) string) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				n.Destination = []byte(address(string(n.Destination)))
			case *ast.Image:
				n.Destination = []byte(address(string(n.Destination)))
			}
		}
		return ast.WalkContinue, nil
	})
}

func (p *parsed) html() string {
	var b bytes.Buffer
	if err := markdown().Renderer().Render(&b, p.source, p.tree); err != nil {
		return html.EscapeString(err.Error()) // a bytes.Buffer has no errors
	}
	return b.String()
}

// blocks renders fenced blocks with their kind, and marks the commands of a console. It leaves out HTML.
type blocks struct{}

func (b *blocks) RegisterFuncs(register renderer.NodeRendererFuncRegisterer) {
	register.Register(ast.KindFencedCodeBlock, b.fenced)
	register.Register(ast.KindHTMLBlock, leaveOut)
	register.Register(ast.KindRawHTML, leaveOut)
}

func leaveOut(util.BufWriter, []byte, ast.Node, bool) (ast.WalkStatus, error) {
	return ast.WalkSkipChildren, nil
}

func (b *blocks) fenced(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	n := node.(*ast.FencedCodeBlock)
	kind := string(n.Language(source))
	fmt.Fprintf(w, "<pre data-kind=%q tabindex=\"0\"><code>", html.EscapeString(kind))
	for line := range strings.Lines(string(n.Lines().Value(source))) {
		fmt.Fprint(w, lineOf(kind, line))
	}
	_, err := w.WriteString("</code></pre>\n")
	return ast.WalkSkipChildren, err
}

// lineOf marks commands, comments, and the changes of a diff.
func lineOf(kind, line string) string {
	text := strings.TrimSuffix(line, "\n")
	class, prefix := "", ""
	switch {
	case kind == "console" && (strings.HasPrefix(text, "$ ") || strings.HasPrefix(text, "> ")):
		class, prefix, text = "command", `<span class="prompt">`+html.EscapeString(text[:2])+`</span>`, text[2:]
	case kind == "console":
		class = "output"
	case kind == "diff" && strings.HasPrefix(text, "+"):
		class = "added"
	case kind == "diff" && strings.HasPrefix(text, "-"):
		class = "removed"
	}
	escaped := html.EscapeString(text)
	if at := commentAt(kind, text); at >= 0 {
		escaped = html.EscapeString(text[:at]) + `<span class="comment">` + html.EscapeString(text[at:]) + "</span>"
	}
	if class != "" {
		escaped = prefix + `<span class="` + class + `">` + escaped + "</span>"
	}
	return escaped + "\n"
}

// commentAt returns where the comment of a line begins, or -1.
func commentAt(kind, text string) int {
	mark := map[string]string{"sh": "# ", "yaml": "# ", "go": "// ", "ts": "// "}[kind]
	if mark == "" {
		return -1
	}
	if strings.HasPrefix(strings.TrimLeft(text, " \t"), mark) {
		return 0
	}
	for _, space := range []string{"   ", "  ", "\t", " "} {
		if at := strings.Index(text, space+mark); at >= 0 && strings.Count(text[:at], `"`)%2 == 0 && strings.Count(text[:at], "'")%2 == 0 {
			return at
		}
	}
	return -1
}
