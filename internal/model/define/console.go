package define

import (
	"bytes"
	"net/http"
	"strings"
	"unicode"
)

// Console is how the server's console looks, and whether there may be one.
type Console struct {
	// Title is the console's; empty is the server's.
	Title string
	// Logo is a picture; empty is none.
	Logo []byte
	// Disabled servers have no console unless the operator wants one.
	Disabled bool
}

const (
	maxConsoleTitle = 100
	maxConsoleLogo  = 256 << 10
)

func (c *checker) console(console Console) {
	if len(console.Title) > maxConsoleTitle || strings.ContainsFunc(console.Title, unicode.IsControl) {
		c.errorf("console", "Title: a line of at most %d bytes is needed", maxConsoleTitle)
	}
	if len(console.Logo) > maxConsoleLogo {
		c.errorf("console", "Logo has %d bytes, and may have %d", len(console.Logo), maxConsoleLogo)
	}
	if len(console.Logo) > 0 && console.LogoType() == "" {
		c.errorf("console", "Logo is no picture that browsers show: it is to be SVG, PNG, JPEG, WebP or GIF")
	}
}

// LogoType is the media type of the logo, by how it begins; empty if it is no picture.
func (c Console) LogoType() string {
	switch found := http.DetectContentType(c.Logo); found {
	case "image/png", "image/jpeg", "image/webp", "image/gif":
		return found
	}
	if start := bytes.TrimSpace(
		c.Logo,
	); bytes.HasPrefix(start, []byte("<svg")) ||
		bytes.HasPrefix(start, []byte("<?xml")) && bytes.Contains(start, []byte("<svg")) {
		return "image/svg+xml"
	}
	return ""
}
