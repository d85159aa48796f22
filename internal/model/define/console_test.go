package define

import (
	"strings"
	"testing"
)

func TestCheck_console(t *testing.T) {
	for name, test := range map[string]struct {
		console Console
		kind    string
		refused string
	}{
		"nothing":    {Console{}, "", ""},
		"SVG":        {Console{Title: "Café", Logo: []byte(` <svg xmlns="http://www.w3.org/2000/svg"/>`)}, "image/svg+xml", ""},
		"XML of SVG": {Console{Logo: []byte(`<?xml version="1.0"?><svg/>`)}, "image/svg+xml", ""},
		"PNG":        {Console{Logo: []byte("\x89PNG\x0d\x0a\x1a\x0a")}, "image/png", ""},
		"HTML":       {Console{Logo: []byte("<html><svg/></html>")}, "", "unsupported format"},
		"other XML":  {Console{Logo: []byte("<?xml version='1.0'?><x/>")}, "", "unsupported format"},
		"too much": {Console{Logo: append([]byte("<svg>"), make([]byte, maxConsoleLogo)...)}, "image/svg+xml", "more than the maximum " +
			"of 262144"},
		"long title":   {Console{Title: strings.Repeat("x", 101)}, "", "Title: must be a line"},
		"broken title": {Console{Title: "a\nb"}, "", "Title: must be a line"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &checker{}
			c.console(test.console)
			if got := test.console.LogoType(); got != test.kind {
				t.Errorf("media type %q, want %q", got, test.kind)
			}
			switch {
			case test.refused == "" && len(c.errs) > 0:
				t.Error(c.errs)
			case test.refused != "" && (len(c.errs) != 1 || !strings.Contains(c.errs[0].Error(), test.refused)):
				t.Errorf("errors %v, want %q", c.errs, test.refused)
			}
		})
	}
}
