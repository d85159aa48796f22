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

// format is the layout of a list around its items.
type format uint8

const (
	plainJSON format = iota
	prettyJSON
	asYAML
	asProtobuf
	// asBetaProtobuf is the protobuf of lists of meta.k8s.io/v1beta1, in which the items precede the metadata.
	asBetaProtobuf
)

// isProtobuf reports whether items are protobuf messages.
func (f format) isProtobuf() bool { return f == asProtobuf || f == asBetaProtobuf }

// formatOf returns the format of a serializer's media type. It returns false if lists in it cannot be put together
// item by item.
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

// mediaType returns the content type of the response.
func (f format) mediaType() string {
	switch f {
	case asYAML:
		return runtime.ContentTypeYAML
	case asProtobuf, asBetaProtobuf:
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// separator returns the text between two items.
func (f format) separator() string {
	if f == plainJSON || f == prettyJSON {
		return ","
	}
	return ""
}

// isWhole reports whether an encoded list without items is complete.
func (f format) isWhole(list []byte) bool {
	switch f {
	case prettyJSON:
		return bytes.HasSuffix(list, []byte("\n}"))
	case asYAML:
		return bytes.HasSuffix(list, []byte("\n")) // the serializer writes it in one call
	case asProtobuf, asBetaProtobuf:
		_, ok := messageIn(list)
		return ok
	}
	return bytes.HasSuffix(list, []byte("}\n"))
}

// fill returns the items in the format, and the bytes before and after them in an encoded list without items. The
// given items are JSON, or messages if the format is protobuf. ok is false if the list has no place for items.
func (f format) fill(list []byte, items verbatim.Items) (filled verbatim.Items, head, tail []byte, ok bool) {
	switch f {
	case prettyJSON:
		items = &indentedItems{Items: items}
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

// itemMarkers returns the texts that mark the place of the items in a list without items. No string in JSON contains
// such a text.
func itemMarkers(pretty bool) []string {
	if pretty {
		return []string{"\n  \"items\": [", "\n  \"items\": null", "\n  \"rows\": ["}
	}
	return []string{`"items":[`, `"items":null`, `"rows":[`}
}

// cutEmpty returns the bytes before and after the items of an encoded list without items.
func cutEmpty(list []byte, pretty bool) (head, tail []byte, ok bool) {
	for _, place := range itemMarkers(pretty) {
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

// indentedItems re-encodes items as indented JSON.
type indentedItems struct {
	verbatim.Items
	plain []byte
}

// itemIndent is the indentation of an item, indent the further indentation of its fields.
const itemIndent, indent = "    ", "  "

// Size implements verbatim.Items.
func (i *indentedItems) Size(item int) int { return 2 * i.Items.Size(item) }

// Append implements verbatim.Items.
func (i *indentedItems) Append(to []byte, item int) ([]byte, error) {
	plain, err := i.Items.Append(i.plain[:0], item)
	if err != nil {
		return nil, err
	}
	i.plain = plain
	buffer := bytes.NewBuffer(append(append(to, '\n'), itemIndent...))
	err = json.Indent(buffer, plain, itemIndent, indent)
	return buffer.Bytes(), err
}

// yamlItems re-encodes items as YAML.
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

// protobufBegin is the prefix of an object encoded as protobuf. The tags are those of its envelope, runtime.Unknown.
const (
	protobufBegin       = "k8s\x00"
	messageTag          = 0x12
	lastTag       uint8 = 0x22
)

// itemsTag is the tag of the items in lists, betaItemsTag their tag in asBetaProtobuf.
const (
	itemsTag     = 0x12
	betaItemsTag = 0x0a
)

// message is the position of an encoded object in its envelope.
type message struct {
	tag        int // position of the tag of the object
	begin, end int
}

// messageIn finds the object in its envelope. It returns false if the envelope is incomplete.
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

// cutMessage is cutEmpty for protobuf, in which the length of the list, items included, precedes the list. The items
// precede the metadata if first is true.
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

// appendMessage takes an encoded object out of its envelope and appends it as an item of a list.
func appendMessage(to, encoded []byte) ([]byte, bool) {
	at, ok := messageIn(encoded)
	if !ok {
		return nil, false
	}
	to = append(to, itemsTag)
	to = binary.AppendUvarint(to, uint64(at.end-at.begin))
	return append(to, encoded[at.begin:at.end]...), true
}

// endsWithItems reports whether lists of a type are encoded as protobuf with their items at the end, as the kinds of
// Kubernetes are.
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
