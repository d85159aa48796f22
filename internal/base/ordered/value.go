package ordered

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// LongestString is how many bytes of a string decide about its place. Values that differ
// only after them count as equal in an order.
const LongestString = 512

// What a value begins with. Values of different types sort by it, and a missing one, which is
// empty, comes before all others.
const (
	tagBoolean = '\x01' + iota
	tagNumber
	tagTime
	tagString
)

// Value is a value as bytes that sort as what they stand for. The zero Value stands for none.
type Value string

// Encode returns the value of a string, a boolean, an int64, a float64 or a time.Time. All
// else, and a number that is none, is no value.
func Encode(v any) Value {
	switch v := v.(type) {
	case string:
		return Value(tagString) + Value(v[:min(len(v), LongestString)])
	case bool:
		if v {
			return Value([]byte{tagBoolean, 1})
		}
		return Value([]byte{tagBoolean, 0})
	case int64:
		float := float64(v)
		// What the float leaves of it. The largest ones round to what is no int64.
		if float >= math.MaxInt64 {
			return number(float, v-math.MaxInt64-1)
		}
		return number(float, v-int64(float))
	case float64:
		if math.IsNaN(v) {
			return ""
		}
		return number(v, 0)
	case time.Time:
		if v.IsZero() {
			return ""
		}
		b := binary.BigEndian.AppendUint64([]byte{tagTime}, uint64(v.Unix())^1<<63)
		return Value(binary.BigEndian.AppendUint32(b, uint32(v.Nanosecond())))
	}
	return ""
}

// number sorts by a float, and integers that are the same float by what they are more than it.
func number(float float64, rest int64) Value {
	bits := math.Float64bits(float + 0) // there is one zero
	if bits>>63 == 0 {
		bits |= 1 << 63
	} else {
		bits = ^bits
	}
	b := binary.BigEndian.AppendUint64([]byte{tagNumber}, bits)
	return Value(binary.BigEndian.AppendUint16(b, uint16(rest)^1<<15))
}

// Text returns the value as people write it; empty if there is none. Of a string it is as much as
// decides about its place.
func (v Value) Text() string {
	if v == "" {
		return ""
	}
	b := []byte(v[1:])
	switch {
	case v[0] == tagString:
		return string(whole(b))
	case v[0] == tagBoolean && len(b) == 1:
		return strconv.FormatBool(b[0] == 1)
	case v[0] == tagTime && len(b) == 12:
		seconds := int64(binary.BigEndian.Uint64(b) ^ 1<<63)
		return time.Unix(seconds, int64(binary.BigEndian.Uint32(b[8:]))).UTC().Format(time.RFC3339Nano)
	case v[0] == tagNumber && len(b) == 10:
		bits := binary.BigEndian.Uint64(b)
		if bits>>63 == 1 {
			bits &^= 1 << 63
		} else {
			bits = ^bits
		}
		float, rest := math.Float64frombits(bits), int64(int16(binary.BigEndian.Uint16(b[8:])^1<<15))
		switch {
		case float >= math.MaxInt64 && rest < 0:
			return strconv.FormatInt(math.MaxInt64+rest+1, 10)
		case float == math.Trunc(float) && float >= math.MinInt64 && float < math.MaxInt64:
			return strconv.FormatInt(int64(float)+rest, 10)
		}
		return strconv.FormatFloat(float, 'g', -1, 64)
	}
	return ""
}

// whole leaves out the beginning of a character that was cut.
func whole(b []byte) []byte {
	for range utf8.UTFMax - 1 {
		if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size != 1 {
			break
		}
		b = b[:len(b)-1]
	}
	return b
}

// Interval is the values from one on and below another; an empty To has no end.
type Interval struct{ From, To Value }

// Exactly holds one value.
func Exactly(v Value) Interval { return Interval{v, v + "\x00"} }

// After holds the values of v's type that are above it; From, those that are not below it.
func After(v Value) Interval { return Interval{v + "\x00", Value([]byte{v[0] + 1})} }

// From holds the values of v's type that are not below it.
func From(v Value) Interval { return Interval{v, Value([]byte{v[0] + 1})} }

// Below holds the values of v's type that are below it.
func Below(v Value) Interval { return Interval{v[:1], v} }

// UpTo holds the values of v's type that are not above it.
func UpTo(v Value) Interval { return Interval{v[:1], v + "\x00"} }

// Not holds all other values than v, none among them.
func Not(v Value) Set { return Set{{"", v}, {v + "\x00", ""}} }

// Set is values, as intervals in order that do not meet. Nil holds none.
type Set []Interval

// All is all values, none among them.
func All() Set { return Set{{}} }

// Union returns the values that are in one of some intervals.
func Union(intervals ...Interval) Set {
	intervals = slices.DeleteFunc(slices.Clone(intervals), func(i Interval) bool { return i.To != "" && i.To <= i.From })
	slices.SortFunc(intervals, func(a, b Interval) int { return compare(a.From, b.From) })
	var all Set
	for _, i := range intervals {
		last := len(all) - 1
		switch {
		case last < 0 || all[last].To != "" && all[last].To < i.From:
			all = append(all, i)
		case all[last].To != "" && (i.To == "" || i.To > all[last].To):
			all[last].To = i.To
		}
	}
	return all
}

// And returns the values that are in both sets.
func (s Set) And(other Set) Set {
	var both []Interval
	for _, a := range s {
		for _, b := range other {
			i := Interval{max(a.From, b.From), a.To}
			if a.To == "" || b.To != "" && b.To < a.To {
				i.To = b.To
			}
			both = append(both, i)
		}
	}
	return Union(both...)
}

// Has tells whether a value is in the set.
func (s Set) Has(v Value) bool {
	return slices.ContainsFunc(s, func(i Interval) bool { return i.From <= v && (i.To == "" || v < i.To) })
}

func compare(a, b Value) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
