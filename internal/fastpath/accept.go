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

// mediaChoice is what clients get for a value of the Accept header: the preferred media type, or the
// fallback if the kind does not have it.
type mediaChoice struct {
	preferred, fallback Media
	watch               bool // the value is usual for watches alone
}

// accepts lists all values of the Accept header that are not left to upstream's negotiation. Client libraries and kubectl send
// these. FuzzAccept compares the table with upstream.
var accepts = map[string]mediaChoice{
	"":                                {preferred: JSON},
	"*/*":                             {preferred: JSON},
	runtime.ContentTypeJSON:           {preferred: JSON},
	runtime.ContentTypeJSON + ", */*": {preferred: JSON},
	runtime.ContentTypeProtobuf:       {preferred: Protobuf},
	runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON: {preferred: Protobuf, fallback: JSON},
	runtime.ContentTypeProtobuf + ", */*":                       {preferred: Protobuf, fallback: JSON},
	runtime.ContentTypeJSON + ";stream=watch":                   {preferred: JSON, watch: true},
	runtime.ContentTypeProtobuf + ";stream=watch":               {preferred: Protobuf, watch: true},
}

// negotiate returns the media type of an answer to a client with a value of the Accept header; 0 if upstream has to negotiate it.
func negotiate(accept string, watch, protobuf bool) Media {
	a := accepts[accept]
	switch {
	case a.watch && !watch:
		return 0
	case a.preferred == Protobuf && !protobuf:
		return a.fallback
	}
	return a.preferred
}
