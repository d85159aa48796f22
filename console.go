package annex

import "github.com/annexapi/annex/internal/model/define"

// Console is how the page at /console/ looks, with which people see and edit the objects of a
// server. Whether it is served says Options.Console; Swagger UI is a page beside it.
type Console struct {
	// Title is what the page is called, in a line of at most 100 bytes; the default is Server.Title.
	Title string
	// Logo is a picture beside the title: SVG, PNG, JPEG, WebP or GIF, of at most 256 KiB. It is shown
	// 24 pixels high, also to those who have not signed in. Nil shows a neutral one.
	Logo []byte
	// Disabled serves neither the console nor Swagger UI unless the operator wants them.
	Disabled bool
}

func (c Console) define() define.Console { return define.Console(c) }
