package protobuf

import (
	"fmt"
	"strconv"
	"strings"
)

// fieldTag is a parsed protobuf struct tag:
//
//	protobuf:"bytes,3,opt,name=id,casttype=ID"
//
// Type, label and casts are taken from the Go field. In the tag they must be well-formed, but are neither used nor
// compared: in Kubernetes' own types they often differ from the field.
type fieldTag struct {
	message string // the message's name, if the tag begins with one
	number  int
	name    string
}

// The range of field numbers.
const (
	minNumber    = 1
	maxNumber    = 1<<29 - 1
	firstTheirs  = 19000 // protobuf reserves these numbers for itself
	lastTheirs   = 19999
	malformedTag = `the tag protobuf:%q %s: write it as protobuf:"bytes,3,opt,name=id", or remove it; annex generate then stores the number in ` + FileName
)

var wireNames = map[int]string{0: "varint", 1: "fixed64", 2: "bytes", 5: "fixed32"}

func parseTag(said string) (fieldTag, error) {
	bad := func(format string, args ...any) (fieldTag, error) {
		return fieldTag{}, fmt.Errorf(malformedTag, said, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(said, ",")
	if len(parts) < 3 {
		return bad("has %d parts, fewer than 3", len(parts))
	}
	var t fieldTag
	switch parts[0] {
	case "varint", "fixed32", "fixed64", "bytes":
	case "group", "zigzag32", "zigzag64", "":
		return bad("begins with %q, which is not supported", parts[0])
	default:
		t.message = parts[0]
	}
	var err error
	if t.number, err = strconv.Atoi(parts[1]); err != nil {
		return bad("has %q where the number of the field must be", parts[1])
	}
	if !legal(t.number) {
		return bad("has number %d, outside of %d to %d without %d to %d", t.number, minNumber, maxNumber, firstTheirs, lastTheirs)
	}
	label := ""
	for _, part := range parts[2:] {
		key, value, found := strings.Cut(part, "=")
		switch {
		case !found && (part == "opt" || part == "req" || part == "rep"):
			if label != "" {
				return bad("has both %s and %s", label, part)
			}
			label = part
		case found && key == "name":
			if !protoName.MatchString(value) {
				return bad("has the name %q, which is not a valid protobuf name", value)
			}
			t.name = value
		case found && (key == "json" || key == "casttype" || key == "castkey" || key == "castvalue"):
		default:
			return bad("has the option %q, which is not supported", part)
		}
	}
	return t, nil
}

// check returns an error if the tag names a message but the field does not hold one.
func (t fieldTag) check(f *field) error {
	if t.message != "" && (f.elem.kind != embedded || f.label == mapped) {
		return fmt.Errorf("its protobuf tag begins with %q but the field holds no message: begin it with %s", t.message, wireNames[f.wire()])
	}
	return nil
}

func legal(number int) bool {
	return number >= minNumber && number <= maxNumber && (number < firstTheirs || number > lastTheirs)
}
