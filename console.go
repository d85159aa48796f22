package annex

import "github.com/annexapi/annex/internal/model/define"

// Console configures the look of the page at /console/, where users see and edit the objects of a server.
// Options.Console enables it. Swagger UI is a separate page beside it.
type Console struct {
	// Title is the page's title, a line of at most 100 bytes; the default is Server.Title.
	Title string
	// Logo is an image beside the title: SVG, PNG, JPEG, WebP or GIF, of at most 256 KiB. It is shown 24 pixels
	// high, also to users who have not signed in. Nil selects a neutral logo.
	Logo []byte
	// Disabled disables the console and Swagger UI unless the operator enables them.
	Disabled bool
}

func (c Console) define() define.Console { return define.Console(c) }
