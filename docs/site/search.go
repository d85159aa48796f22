package main

import (
	"slices"
	"strings"
	"unicode"
)

// index lists in which sections of the pages each word occurs. The script of the site reads it.
type index struct {
	// Sections are the page's title, the heading if it is another, the address, and the beginning of the text.
	Sections [][4]string `json:"s"`
	// Words maps a word to the sections in which it occurs, as differences from the one before. A word of a heading has
	// the negative number.
	Words map[string][]int `json:"w"`

	last map[string]int
}

const (
	excerpt = 160 // runes
	longest = 40  // bytes of a word; longer ones are hashes and keys
)

func (x *index) add(p *page) {
	if x.Words == nil {
		x.Words, x.last = map[string][]int{}, map[string]int{}
	}
	for _, s := range p.parsed.sections {
		number := len(x.Sections) + 1
		heading, address := s.heading.Text, p.target+"#"+s.heading.Anchor
		if s.heading.Level == 1 {
			heading, address = "", p.target
		}
		text := strings.Join(strings.Fields(s.text), " ")
		if runes := []rune(text); len(runes) > excerpt {
			text = strings.TrimSpace(string(runes[:excerpt])) + " ..."
		}
		x.Sections = append(x.Sections, [4]string{p.title, heading, address, text})
		named := words(s.heading.Text)
		all := append(words(s.text), named...)
		slices.Sort(all)
		for _, word := range slices.Compact(all) {
			step := number - x.last[word]
			if slices.Contains(named, word) {
				step = -step
			}
			x.Words[word] = append(x.Words[word], step)
			x.last[word] = number
		}
	}
}

// words returns the words of a text, in lower case. The parts of a word with hyphens or dots are words, too.
func words(text string) []string {
	isPart := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	var found []string
	add := func(word string) {
		if len(word) > 1 && len(word) <= longest {
			found = append(found, word)
		}
	}
	separates := func(r rune) bool { return !isPart(r) && !strings.ContainsRune("-._", r) }
	for _, word := range strings.FieldsFunc(strings.ToLower(text), separates) {
		word = strings.Trim(word, "-._")
		parts := strings.FieldsFunc(word, func(r rune) bool { return !isPart(r) })
		if len(parts) > 1 && strings.HasPrefix(word, parts[0]+"-") {
			add(word) // a flag, such as secure-port
		}
		for _, part := range parts {
			add(part)
		}
	}
	return found
}
