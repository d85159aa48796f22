package annex

import "github.com/annexapi/annex/internal/model/define"

// Console configures the appearance of the page at /console/, on which people see and edit the objects of a server.
// Options.Console turns the page on and off. Swagger UI is a page beside it.
type Console struct {
	// Title is the title of the page, a line of at most 100 bytes; the default is Server.Title.
	Title string
	// Logo is a picture beside the title: SVG, PNG, JPEG, WebP or GIF, of at most 256 KiB. It is shown 24 pixels high,
	// even before signing in. Nil shows a neutral logo.
	Logo []byte
	// Disabled turns the console and Swagger UI off, unless the operator turns them on.
	Disabled bool
}

func (c Console) define() define.Console { return define.Console(c) }
