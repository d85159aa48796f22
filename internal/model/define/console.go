package define

import (
	"bytes"
	"net/http"
	"strings"
	"unicode"
)

// Console configures the server's console.
type Console struct {
	// Title is the title of the console; empty means the server's title.
	Title string
	// Logo is a picture; empty means none.
	Logo []byte
	// Disabled turns the console off unless the operator enables it.
	Disabled bool
}

const (
	maxConsoleTitle = 100
	maxConsoleLogo  = 256 << 10
)

func (c *checker) console(console Console) {
	if len(console.Title) > maxConsoleTitle || strings.ContainsFunc(console.Title, unicode.IsControl) {
		c.errorf("console", "Title: must be a line of at most %d bytes", maxConsoleTitle)
	}
	if len(console.Logo) > maxConsoleLogo {
		c.errorf("console", "Logo has %d bytes, more than the maximum of %d", len(console.Logo), maxConsoleLogo)
	}
	if len(console.Logo) > 0 && console.LogoType() == "" {
		c.errorf("console", "Logo has an unsupported format: use SVG, PNG, JPEG, WebP or GIF")
	}
}

// LogoType returns the media type of the logo, determined from its first bytes; empty if it is not a picture.
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
