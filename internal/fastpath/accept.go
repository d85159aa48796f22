package fastpath

import "k8s.io/apimachinery/pkg/runtime"

// Media is the media type of an answer.
type Media uint8

// The media types in which the fast path answers.
const (
	_ Media = iota
	JSON
	Protobuf
)

// accepted is what clients get for a value of the Accept header: first, or second if the kind has no first.
type accepted struct {
	first, second Media
	watch         bool // the value is usual for watches alone
}

// accepts lists all values of the Accept header that are not left to upstream's negotiation. Client libraries and kubectl send these. FuzzAccept compares the table with upstream.
var accepts = map[string]accepted{
	"":                                {first: JSON},
	"*/*":                             {first: JSON},
	runtime.ContentTypeJSON:           {first: JSON},
	runtime.ContentTypeJSON + ", */*": {first: JSON},
	runtime.ContentTypeProtobuf:       {first: Protobuf},
	runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON: {first: Protobuf, second: JSON},
	runtime.ContentTypeProtobuf + ", */*":                       {first: Protobuf, second: JSON},
	runtime.ContentTypeJSON + ";stream=watch":                   {first: JSON, watch: true},
	runtime.ContentTypeProtobuf + ";stream=watch":               {first: Protobuf, watch: true},
}

// negotiate returns the media type of an answer to a client with a value of the Accept header; 0 if upstream has to negotiate it.
func negotiate(accept string, watch, protobuf bool) Media {
	a := accepts[accept]
	switch {
	case a.watch && !watch:
		return 0
	case a.first == Protobuf && !protobuf:
		return a.second
	}
	return a.first
}
