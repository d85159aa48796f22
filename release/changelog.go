package main

import (
	"fmt"
	"strings"
)

const unreleased = "Unreleased"

// section returns the text below the heading of a changelog, and the changelog's other parts.
func section(changelog, title string) (before, text, after string, ok bool) {
	heading := "\n## " + title + "\n"
	before, text, ok = strings.Cut(changelog, heading)
	if !ok {
		return "", "", "", false
	}
	if at := strings.Index(text, "\n## "); at >= 0 {
		text, after = text[:at], text[at:]
	}
	return before, text, after, true
}

// notes returns the changelog's part about a version. Lines that wait for a release are rejected: this one would lack them.
func notes(changelog, version string) (string, error) {
	_, text, _, ok := section(changelog, version)
	if !ok {
		return "", fmt.Errorf("CHANGELOG.md has no section %q: rename the section %q", "## "+version, "## "+unreleased)
	}
	if _, waiting, _, ok := section(changelog, unreleased); ok && strings.TrimSpace(waiting) != "" {
		return "", fmt.Errorf("CHANGELOG.md has lines in the section %q: move them to %q", "## "+unreleased, "## "+version)
	}
	if strings.TrimSpace(text) == "" {
		return "", fmt.Errorf("CHANGELOG.md has an empty section %q: describe the changes", "## "+version)
	}
	return strings.TrimSpace(text) + "\n", nil
}

// named returns the changelog with the section of unreleased changes named after a version. A changelog with a section of
// that version stays.
func named(changelog, version string) string {
	if _, _, _, ok := section(changelog, version); ok {
		return changelog
	}
	before, text, after, ok := section(changelog, unreleased)
	if !ok {
		return changelog
	}
	return before + "\n## " + version + "\n" + text + after
}
