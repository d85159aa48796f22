package ordered

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// LongestString is the number of bytes of a string that determine its place. Values that differ only after them count
// as equal in an order.
const LongestString = 512

// The first byte of a value. Values of different types sort by it. A missing value is empty and sorts before all
// others.
const (
	tagBoolean = '\x01' + iota
	tagNumber
	tagTime
	tagString
)

// Value is a value encoded as bytes that sort in its natural order. The zero Value stands for a missing one.
type Value string

// Encode returns the value of a string, a boolean, an int64, a float64 or a time.Time. Any other type, and NaN,
// becomes the missing value.
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
		// The remainder of the integer. The largest ones round to a float that is no int64.
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

// number sorts by a float, and integers with the same float by their remainders.
func number(float float64, rest int64) Value {
	bits := math.Float64bits(float + 0) // there is only one zero
	if bits>>63 == 0 {
		bits |= 1 << 63
	} else {
		bits = ^bits
	}
	b := binary.BigEndian.AppendUint64([]byte{tagNumber}, bits)
	return Value(binary.BigEndian.AppendUint16(b, uint16(rest)^1<<15))
}

// Text returns the value as people write it; empty if it is missing. A string is cut to the part that determines its
// place.
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

// whole removes an incomplete character from the end.
func whole(b []byte) []byte {
	for range utf8.UTFMax - 1 {
		if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size != 1 {
			break
		}
		b = b[:len(b)-1]
	}
	return b
}

// Interval is the range of values from From, inclusive, to To, exclusive; an empty To has no end.
type Interval struct{ From, To Value }

// Exactly contains one value.
func Exactly(v Value) Interval { return Interval{v, v + "\x00"} }

// After contains the values of v's type above v.
func After(v Value) Interval { return Interval{v + "\x00", Value([]byte{v[0] + 1})} }

// From contains the values of v's type that are v or above.
func From(v Value) Interval { return Interval{v, Value([]byte{v[0] + 1})} }

// Below contains the values of v's type below v.
func Below(v Value) Interval { return Interval{v[:1], v} }

// UpTo contains the values of v's type that are v or below.
func UpTo(v Value) Interval { return Interval{v[:1], v + "\x00"} }

// Not contains all values other than v, including the missing value.
func Not(v Value) Set { return Set{{"", v}, {v + "\x00", ""}} }

// Set is a set of values, as sorted intervals that do not touch. Nil is the empty set.
type Set []Interval

// All contains all values, including the missing value.
func All() Set { return Set{{}} }

// Union returns the values that are in any of the intervals.
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

// Has reports whether a value is in the set.
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
