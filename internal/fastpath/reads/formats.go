package reads

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/wire/plainyaml"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// format is how a list is written around its items.
type format uint8

const (
	plainJSON format = iota
	prettyJSON
	asYAML
	asProtobuf
	// asBetaProtobuf is that of the lists of meta.k8s.io/v1beta1, in which the items come before the metadata.
	asBetaProtobuf
)

// isProtobuf says whether items are messages.
func (f format) isProtobuf() bool { return f == asProtobuf || f == asBetaProtobuf }

// formatOf returns the format of what a serializer of a media type writes; false if lists are not put together in it.
func formatOf(mediaType string, pretty bool) (format, bool) {
	switch mediaType {
	case runtime.ContentTypeJSON:
		if pretty {
			return prettyJSON, true
		}
		return plainJSON, true
	case runtime.ContentTypeYAML:
		return asYAML, !pretty
	case runtime.ContentTypeProtobuf:
		return asProtobuf, !pretty
	}
	return 0, false
}

// mediaType is the content type of the answer.
func (f format) mediaType() string {
	switch f {
	case asYAML:
		return runtime.ContentTypeYAML
	case asProtobuf, asBetaProtobuf:
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// separator is what comes between two items.
func (f format) separator() string {
	if f == plainJSON || f == prettyJSON {
		return ","
	}
	return ""
}

// isWhole reports whether an encoded list without items has come to its end.
func (f format) isWhole(list []byte) bool {
	switch f {
	case prettyJSON:
		return bytes.HasSuffix(list, []byte("\n}"))
	case asYAML:
		return bytes.HasSuffix(list, []byte("\n")) // it is written at once
	case asProtobuf, asBetaProtobuf:
		_, ok := messageIn(list)
		return ok
	}
	return bytes.HasSuffix(list, []byte("}\n"))
}

// fill returns items as they are written, of items that are JSON, or messages if the format is protobuf, and the text before and
// after them in an encoded list without items. It is false if there is no place for them.
func (f format) fill(list []byte, items verbatim.Items) (filled verbatim.Items, head, tail []byte, ok bool) {
	switch f {
	case prettyJSON:
		items = &indented{Items: items}
	case asYAML:
		items = &yamlItems{Items: items}
		head, tail, ok = cutYAML(list)
		return items, head, tail, ok
	case asProtobuf, asBetaProtobuf:
		head, tail, ok = cutMessage(list, items, f == asBetaProtobuf)
		return items, head, tail, ok
	}
	head, tail, ok = cutEmpty(list, f == prettyJSON)
	return items, head, tail, ok
}

// placesOf returns where the items of a list without any belong: no string in JSON has such a piece.
func placesOf(pretty bool) []string {
	if pretty {
		return []string{"\n  \"items\": [", "\n  \"items\": null", "\n  \"rows\": ["}
	}
	return []string{`"items":[`, `"items":null`, `"rows":[`}
}

// cutEmpty returns what comes before and after the items of an encoded list that has none.
func cutEmpty(list []byte, pretty bool) (head, tail []byte, ok bool) {
	for _, place := range placesOf(pretty) {
		before, after, found := bytes.Cut(list, []byte(place))
		if !found {
			continue
		}
		begin, empty := strings.CutSuffix(place, "null")
		if empty {
			begin += "["
		} else if after, found = bytes.CutPrefix(after, []byte("]")); !found {
			return nil, nil, false
		}
		end := "]"
		if pretty {
			end = "\n  ]"
		}
		return append(bytes.Clone(before), begin...), append([]byte(end), after...), true
	}
	return nil, nil, false
}

// cutYAML is cutEmpty for YAML. Only the fields of the list itself begin in the first column.
func cutYAML(list []byte) (head, tail []byte, ok bool) {
	for _, place := range []string{"\nitems: []\n", "\nitems: null\n", "\nrows: []\n"} {
		before, after, found := bytes.Cut(list, []byte(place))
		if !found {
			continue
		}
		name, _, _ := strings.Cut(place, ":")
		return append(append(bytes.Clone(before), name...), ":\n"...), after, true
	}
	return nil, nil, false
}

// indented are items as JSON with line breaks, for people.
type indented struct {
	verbatim.Items
	plain []byte
}

// itemIndent is how far an item is indented, and indent how far its fields are, from there.
const itemIndent, indent = "    ", "  "

// Size implements verbatim.Items.
func (i *indented) Size(item int) int { return 2 * i.Items.Size(item) }

// Append implements verbatim.Items.
func (i *indented) Append(to []byte, item int) ([]byte, error) {
	plain, err := i.Items.Append(i.plain[:0], item)
	if err != nil {
		return nil, err
	}
	i.plain = plain
	buffer := bytes.NewBuffer(append(append(to, '\n'), itemIndent...))
	err = json.Indent(buffer, plain, itemIndent, indent)
	return buffer.Bytes(), err
}

// yamlItems are items as YAML.
type yamlItems struct {
	verbatim.Items
	plain  []byte
	writer plainyaml.Writer
}

// Append implements verbatim.Items.
func (y *yamlItems) Append(to []byte, item int) ([]byte, error) {
	plain, err := y.Items.Append(y.plain[:0], item)
	if err != nil {
		return nil, err
	}
	y.plain = plain
	return y.writer.AppendItem(to, plain)
}

// The first bytes of an encoded object as protobuf, and the tags of its envelope.
const (
	protobufBegin       = "k8s\x00"
	messageTag          = 0x12
	lastTag       uint8 = 0x22
)

// itemsTag is the tag of the items in the lists that are put together, and betaItemsTag in those of asBetaProtobuf.
const (
	itemsTag     = 0x12
	betaItemsTag = 0x0a
)

// message is the place of an encoded object in its envelope.
type message struct {
	tag        int // where the tag of the object is
	begin, end int
}

// messageIn finds that place; false if the envelope is not complete.
func messageIn(encoded []byte) (found message, ok bool) {
	if !bytes.HasPrefix(encoded, []byte(protobufBegin)) {
		return message{}, false
	}
	at := len(protobufBegin)
	for at < len(encoded) {
		tag := encoded[at]
		length, n := binary.Uvarint(encoded[at+1:])
		begin := at + 1 + n
		if n <= 0 || length > uint64(len(encoded)-begin) {
			return message{}, false
		}
		end := begin + int(length)
		switch tag {
		case messageTag:
			found = message{at, begin, end}
		case lastTag:
			return found, found.end > 0 && end == len(encoded)
		}
		at = end
	}
	return message{}, false
}

// cutMessage is cutEmpty for protobuf, in which the length of the list with its items comes before it. The items come before the
// metadata if they are first.
func cutMessage(list []byte, items verbatim.Items, first bool) (head, tail []byte, ok bool) {
	at, ok := messageIn(list)
	if !ok {
		return nil, nil, false
	}
	length := at.end - at.begin
	for i := range items.Len() {
		length += items.Size(i)
	}
	head = append(make([]byte, 0, len(list)+binary.MaxVarintLen64), list[:at.tag+1]...)
	head = binary.AppendUvarint(head, uint64(length))
	if first {
		return head, list[at.begin:], true
	}
	return append(head, list[at.begin:at.end]...), list[at.end:], true
}

// appendMessage appends an encoded object with its envelope as the item of a list.
func appendMessage(to, encoded []byte) ([]byte, bool) {
	at, ok := messageIn(encoded)
	if !ok {
		return nil, false
	}
	to = append(to, itemsTag)
	to = binary.AppendUvarint(to, uint64(at.end-at.begin))
	return append(to, encoded[at.begin:at.end]...), true
}

// endsWithItems reports whether lists of a type are encoded as protobuf with their items at the end, as kinds of Kubernetes are.
func endsWithItems(list runtime.Object, serializer runtime.NegotiatedSerializer, gv schema.GroupVersion, item runtime.Object) bool {
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	of, err := meta.ListAccessor(list)
	if !ok || err != nil {
		return false
	}
	of.SetResourceVersion("1")
	of.SetContinue("<continue>")
	encoder := serializer.EncoderForVersion(info.Serializer, gv)
	encode := func(object runtime.Object) []byte {
		var encoded bytes.Buffer
		if encoder.Encode(object, &encoded) != nil {
			return nil
		}
		at, ok := messageIn(encoded.Bytes())
		if !ok {
			return nil
		}
		return encoded.Bytes()[at.begin:at.end]
	}
	one := encode(item)
	if meta.SetList(list, nil) != nil {
		return false
	}
	empty := encode(list)
	if meta.SetList(list, []runtime.Object{item, item}) != nil || one == nil || empty == nil {
		return false
	}
	for range 2 {
		empty = append(binary.AppendUvarint(append(bytes.Clone(empty), itemsTag), uint64(len(one))), one...)
	}
	return bytes.Equal(encode(list), empty)
}
