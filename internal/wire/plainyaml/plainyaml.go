// Package plainyaml writes the items of a list, which are JSON, as YAML. The result is byte for byte that of
// sigs.k8s.io/yaml for the whole list, in a fiftieth of its processor time and with hardly any memory. Items with
// unusual values are delegated to that library, item by item.
package plainyaml

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Writer writes items. The zero value is ready to use. It keeps buffers as large as the largest item that it has
// written. It must not be used concurrently.
type Writer struct {
	nodes    []node
	text     []byte // unescaped strings
	children []int32
	out      []byte
	column   int
	fresh    bool // nothing has been written to the current line
}

// AppendItem appends a value as an element of an unindented sequence, including the end of its last line. The value
// must be valid JSON. AppendItem returns an error only if the library does.
func (w *Writer) AppendItem(to, json []byte) ([]byte, error) {
	begin := len(to)
	if w.parse(json) == nil {
		w.out, w.column, w.fresh = to, 0, true
		err := w.item(0, 0)
		to, w.out = w.out, nil
		if err == nil {
			if !w.fresh {
				to = append(to, '\n')
			}
			return to, nil
		}
	}
	return byLibrary(to[:begin], json)
}

const listHead, listEnd = `{"items":[`, `]}`

// byLibrary is AppendItem by sigs.k8s.io/yaml.
func byLibrary(to, json []byte) ([]byte, error) {
	list := make([]byte, 0, len(listHead)+len(json)+len(listEnd))
	list = append(append(append(list, listHead...), json...), listEnd...)
	text, err := yaml.JSONToYAML(list)
	if err != nil {
		return nil, err
	}
	item, ok := bytes.CutPrefix(text, []byte("items:\n"))
	if !ok {
		return nil, fmt.Errorf("write an item as YAML: it begins with %.20q", text)
	}
	return append(to, item...), nil
}

// node is a value with its key, if it is a member of an object. The nodes of its members or elements follow it.
type node struct {
	key  []byte
	text []byte // of a string, unescaped; of other scalars, the JSON text
	kind byte   // { for objects, [ for arrays, " for strings, 0 for other scalars
	next int32  // index of the first node after the value
}

var errUnusual = errors.New("a value is left to the library")

// mostNested bounds the depth of values, longestKey the length of keys. Values beyond these bounds are delegated.
const (
	mostNested = 200
	longestKey = 128
)

func (w *Writer) parse(json []byte) error {
	w.nodes, w.text = w.nodes[:0], w.text[:0]
	rest, err := w.parseValue(json, nil, 0)
	if err != nil || len(skipSpace(rest)) > 0 {
		return errUnusual
	}
	return nil
}

func skipSpace(json []byte) []byte {
	for len(json) > 0 && (json[0] == ' ' || json[0] == '\n' || json[0] == '\t' || json[0] == '\r') {
		json = json[1:]
	}
	return json
}

func (w *Writer) parseValue(json, key []byte, depth int) (rest []byte, err error) {
	if json = skipSpace(json); len(json) == 0 || depth > mostNested {
		return nil, errUnusual
	}
	at := len(w.nodes)
	w.nodes = append(w.nodes, node{key: key})
	switch sign := json[0]; sign {
	case '{', '[':
		w.nodes[at].kind = sign
		if rest, err = w.parseElements(json[1:], sign, depth); err != nil {
			return nil, err
		}
	case '"':
		w.nodes[at].kind = sign
		var text []byte
		if text, rest, err = w.parseString(json[1:]); err != nil {
			return nil, err
		}
		w.nodes[at].text = text
	default:
		end := bytes.IndexAny(json, ",]} \n\t\r")
		if end < 0 {
			end = len(json)
		}
		w.nodes[at].text, rest = json[:end], json[end:]
	}
	w.nodes[at].next = int32(len(w.nodes))
	return rest, nil
}

// parseElements parses the members of an object, or the elements of an array, and the closing sign.
func (w *Writer) parseElements(json []byte, sign byte, depth int) (rest []byte, err error) {
	end := sign + 2 // in ASCII, both closing signs are two above the opening ones
	if json = skipSpace(json); len(json) > 0 && json[0] == end {
		return json[1:], nil
	}
	for {
		var key []byte
		if sign == '{' {
			if key, json, err = w.parseKey(json); err != nil {
				return nil, err
			}
		}
		if json, err = w.parseValue(json, key, depth+1); err != nil {
			return nil, err
		}
		json = skipSpace(json)
		switch {
		case len(json) > 0 && json[0] == ',':
			json = json[1:]
		case len(json) > 0 && json[0] == end:
			return json[1:], nil
		default:
			return nil, errUnusual
		}
	}
}

func (w *Writer) parseKey(json []byte) (key, rest []byte, err error) {
	if json = skipSpace(json); len(json) == 0 || json[0] != '"' {
		return nil, nil, errUnusual
	}
	if key, json, err = w.parseString(json[1:]); err != nil {
		return nil, nil, err
	}
	json = skipSpace(json)
	// The library merges the value of a key <<, and writes long keys on lines of their own.
	if len(json) == 0 || json[0] != ':' || len(key) > longestKey || string(key) == "<<" || bytes.IndexByte(key, '\n') >= 0 {
		return nil, nil, errUnusual
	}
	return key, json[1:], nil
}

// parseString returns the string at the beginning of json, which starts behind the opening quote.
func (w *Writer) parseString(json []byte) (text, rest []byte, err error) {
	for i := 0; i < len(json); {
		switch c := json[i]; {
		case c == '"':
			return json[:i], json[i+1:], nil
		case c == '\\':
			return w.unescape(json, i)
		case c < ' ' || c == 0x7f:
			return nil, nil, errUnusual
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(json[i:])
			if !isPlain(r) || r == utf8.RuneError && size == 1 {
				return nil, nil, errUnusual
			}
			i += size
		}
	}
	return nil, nil, errUnusual
}

// isPlain reports whether a character beyond ASCII is written unchanged. The other characters are control characters,
// line breaks, or escaped.
func isPlain(r rune) bool {
	switch {
	case r < 0xa0, r == '\u2028', r == '\u2029', r == '\ufeff', r > 0xfffd, r >= 0xd800 && r < 0xe000:
		return false
	}
	return true
}

// unescape is like parseString for a string with escapes; its first plain bytes need no change.
func (w *Writer) unescape(json []byte, plain int) (text, rest []byte, err error) {
	begin := len(w.text)
	w.text = append(w.text, json[:plain]...)
	for i := plain; i < len(json); {
		c := json[i]
		switch {
		case c == '"':
			return w.text[begin:len(w.text):len(w.text)], json[i+1:], nil
		case c < ' ' || c == 0x7f:
			return nil, nil, errUnusual
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(json[i:])
			if !isPlain(r) || r == utf8.RuneError && size == 1 {
				return nil, nil, errUnusual
			}
			w.text = append(w.text, json[i:i+size]...)
			i += size
			continue
		case c != '\\':
			w.text = append(w.text, c)
			i++
			continue
		}
		if i+1 >= len(json) {
			break
		}
		switch json[i+1] {
		case '"', '\\':
			w.text = append(w.text, json[i+1])
		case 'n':
			w.text = append(w.text, '\n')
		case 't':
			w.text = append(w.text, '\t')
		case 'u':
			if i+6 > len(json) {
				return nil, nil, errUnusual
			}
			code, err := strconv.ParseUint(string(json[i+2:i+6]), 16, 16)
			r := rune(code)
			if err != nil || r < ' ' || r == 0x7f || r >= utf8.RuneSelf && !isPlain(r) {
				return nil, nil, errUnusual
			}
			w.text = utf8.AppendRune(w.text, r)
			i += 4
		default:
			return nil, nil, errUnusual
		}
		i += 2
	}
	return nil, nil, errUnusual
}

func (w *Writer) put(c byte) {
	w.out = append(w.out, c)
	w.column++
	w.fresh = false
}

// line starts a new line, unless the current one is empty, and indents it.
func (w *Writer) line(indent int) {
	if !w.fresh {
		w.out = append(w.out, '\n')
		w.column = 0
	}
	for w.column < indent {
		w.out = append(w.out, ' ')
		w.column++
	}
	w.fresh = false
}

// perLevel is the indentation of the members of a value.
const perLevel = 2

// item writes an element of a sequence with the given indentation.
func (w *Writer) item(at int32, indent int) error {
	w.put('-')
	w.put(' ')
	n := &w.nodes[at]
	switch {
	case n.kind == '{' && n.next > at+1:
		return w.mapping(at, indent+perLevel)
	case n.kind == '[' && n.next > at+1:
		return w.sequence(at, indent+perLevel)
	}
	return w.scalar(n, indent+perLevel)
}

// sequence writes the elements of a sequence. The first one continues the current line.
func (w *Writer) sequence(at int32, indent int) error {
	for c := at + 1; c < w.nodes[at].next; c = w.nodes[c].next {
		if c > at+1 {
			w.line(indent)
		}
		if err := w.item(c, indent); err != nil {
			return err
		}
	}
	return nil
}

// mapping writes the members of an object in the library's order. The first one continues the current line.
func (w *Writer) mapping(at int32, indent int) error {
	begin := len(w.children)
	for c := at + 1; c < w.nodes[at].next; c = w.nodes[c].next {
		w.children = append(w.children, c)
	}
	end := len(w.children)
	defer func() { w.children = w.children[:begin] }()
	slices.SortFunc(w.children[begin:end], func(a, b int32) int { return compare(w.nodes[a].key, w.nodes[b].key) })
	for i := begin; i < end; i++ {
		c := w.children[i]
		n := &w.nodes[c]
		if i > begin {
			if bytes.Equal(n.key, w.nodes[w.children[i-1]].key) {
				return errUnusual
			}
			w.line(indent)
		}
		w.string(n.key, indent, true)
		w.put(':')
		var err error
		switch {
		case n.kind == '{' && n.next > c+1:
			w.line(indent + perLevel)
			err = w.mapping(c, indent+perLevel)
		case n.kind == '[' && n.next > c+1:
			w.line(indent)
			err = w.sequence(c, indent)
		default:
			w.put(' ')
			err = w.scalar(n, indent+perLevel)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scalar writes a scalar or an empty collection. indent is the indentation of further lines.
func (w *Writer) scalar(n *node, indent int) error {
	switch n.kind {
	case '{':
		w.ascii("{}")
	case '[':
		w.ascii("[]")
	case '"':
		w.string(n.text, indent, false)
	default:
		switch string(n.text) {
		case "true", "false", "null":
			w.ascii(string(n.text))
		default:
			return w.number(n.text)
		}
	}
	return nil
}

func (w *Writer) ascii(text string) {
	w.out = append(w.out, text...)
	w.column += len(text)
	w.fresh = false
}

// number writes a number as the library would: as a 64-bit integer if it is one.
func (w *Writer) number(text []byte) error {
	digits := text
	if len(digits) > 1 && digits[0] == '-' {
		digits = digits[1:]
	}
	if isDigits(digits) && len(digits) < 19 && (digits[0] != '0' || len(text) == 1) {
		w.ascii(string(text))
		return nil
	}
	if len(digits) == 0 || digits[0] < '0' || digits[0] > '9' {
		return errUnusual
	}
	s := string(text)
	if i, err := strconv.ParseInt(s, 0, 64); err == nil {
		w.ascii(strconv.FormatInt(i, 10))
		return nil
	}
	if u, err := strconv.ParseUint(s, 0, 64); err == nil {
		w.ascii(strconv.FormatUint(u, 10))
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !isYAMLFloat(s) {
		return errUnusual
	}
	w.ascii(strconv.FormatFloat(f, 'g', -1, 64))
	return nil
}

func isDigits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// widest is the column after which a space becomes a line break.
const widest = 80

// string writes a string in the style that the library chooses. Keys are not folded.
func (w *Writer) string(s []byte, indent int, key bool) {
	is := look(s)
	switch {
	case is.breaks && !key:
		if is.literal {
			w.literal(s, indent)
			return
		}
		w.doubleQuoted(s, indent, !key)
	case is.breaks || !isString(s):
		w.doubleQuoted(s, indent, !key)
	case is.plain:
		w.words(s, indent, !key, false)
	case is.singleQuoted:
		w.put('\'')
		w.words(s, indent, !key, true)
		w.put('\'')
	default:
		w.doubleQuoted(s, indent, !key)
	}
}

// looks are the styles that a string may be written in.
type looks struct {
	breaks                       bool // the string has line breaks
	plain, singleQuoted, literal bool
}

// look returns the possible styles by the library's rules.
func look(s []byte) looks {
	if len(s) == 0 {
		return looks{plain: true, singleQuoted: true}
	}
	is := looks{plain: true, singleQuoted: true, literal: true}
	if bytes.HasPrefix(s, []byte("---")) || bytes.HasPrefix(s, []byte("...")) {
		is.plain = false
	}
	switch s[0] {
	case '#', ',', '[', ']', '{', '}', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ', '\n':
		is.plain = false
	case '?', ':', '-':
		if len(s) == 1 || s[1] == ' ' || s[1] == '\t' {
			is.plain = false
		}
	}
	last := len(s) - 1
	if s[last] == ' ' {
		is.plain, is.literal = false, false
	}
	for i, c := range s {
		switch c {
		case ':':
			if i > 0 && (i == last || s[i+1] == ' ' || s[i+1] == '\t') {
				is.plain = false
			}
		case '#':
			if i > 0 && (s[i-1] == ' ' || s[i-1] == '\t' || s[i-1] == '\n') {
				is.plain = false
			}
		case ' ':
			if i > 0 && s[i-1] == '\n' {
				is.plain, is.singleQuoted = false, false
			}
		case '\n':
			is.breaks, is.plain = true, false
			if i > 0 && s[i-1] == ' ' {
				is.singleQuoted, is.literal = false, false
			}
		case '\t':
			is.plain, is.singleQuoted, is.literal = false, false, false
		}
	}
	return is
}

// words writes a plain string, or the text between single quotes.
func (w *Writer) words(s []byte, indent int, fold, quoted bool) {
	if !quoted && (!fold || w.column+len(s) <= widest) {
		w.out = append(w.out, s...)
		w.column += utf8.RuneCount(s)
		w.fresh = false
		return
	}
	spaces := false
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == ' ':
			if fold && !spaces && w.column > widest && i > 0 && i < len(s)-1 && s[i+1] != ' ' {
				w.line(indent)
			} else {
				w.put(' ')
			}
			i++
			spaces = true
			continue
		case c == '\'' && quoted:
			w.put('\'')
			fallthrough
		case c < utf8.RuneSelf:
			w.put(c)
			i++
		default:
			i += w.putRune(s[i:])
		}
		spaces = false
	}
}

func (w *Writer) putRune(s []byte) (size int) {
	_, size = utf8.DecodeRune(s)
	w.out = append(w.out, s[:size]...)
	w.column++
	w.fresh = false
	return size
}

func (w *Writer) doubleQuoted(s []byte, indent int, fold bool) {
	w.put('"')
	spaces := false
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == ' ':
			if fold && !spaces && w.column > widest && i > 0 && i < len(s)-1 {
				w.line(indent)
				if s[i+1] == ' ' {
					w.put('\\')
				}
			} else {
				w.put(' ')
			}
			i++
			spaces = true
			continue
		case c == '"' || c == '\\':
			w.put('\\')
			w.put(c)
			i++
		case c == '\n':
			w.ascii(`\n`)
			i++
		case c == '\t':
			w.ascii(`\t`)
			i++
		case c < utf8.RuneSelf:
			w.put(c)
			i++
		default:
			i += w.putRune(s[i:])
		}
		spaces = false
	}
	w.put('"')
}

// literal writes a string with line breaks in the literal style.
func (w *Writer) literal(s []byte, indent int) {
	w.put('|')
	if s[0] == ' ' || s[0] == '\n' {
		w.put('0' + perLevel)
	}
	switch last := len(s) - 1; {
	case s[last] != '\n':
		w.put('-')
	case last == 0 || s[last-1] == '\n':
		w.put('+')
	}
	w.out = append(w.out, '\n')
	w.column, w.fresh = 0, true
	for len(s) > 0 {
		text, rest, broken := bytes.Cut(s, []byte("\n"))
		if len(text) > 0 {
			w.line(indent)
			w.out = append(w.out, text...)
			w.column += len(text)
		}
		if broken {
			w.out = append(w.out, '\n')
			w.column, w.fresh = 0, true
		}
		s = rest
	}
}

// isString reports whether an unquoted string is read as a string, and not as a number, a time, or another value.
func isString(s []byte) bool {
	if len(s) == 0 {
		return false
	}
	switch c := s[0]; c {
	case 'y', 'Y', 'n', 'N', 't', 'T', 'f', 'F', 'o', 'O', '~':
		return !isWord(s)
	case '.':
		if isWord(s) {
			return false
		}
		_, err := strconv.ParseFloat(string(s), 64)
		return err != nil
	case '+', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return !isWord(s) && !isTime(s) && !isNumber(s) && !isBase60(s)
	}
	return true
}

func isWord(s []byte) bool {
	switch string(s) {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N", "no", "No", "NO", "false", "False", "FALSE",
		"off", "Off", "OFF", "~", "null", "Null", "NULL",
		".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF":
		return true
	}
	return false
}

// timeLayouts returns the layouts of times that the library reads.
func timeLayouts() [4]string {
	return [...]string{"2006-1-2T15:4:5.999999999Z07:00", "2006-1-2t15:4:5.999999999Z07:00", "2006-1-2 15:4:5.999999999", "2006-1-2"}
}

func isTime(s []byte) bool {
	if len(s) < 6 || s[4] != '-' || !isDigits(s[:4]) {
		return false
	}
	text := string(s)
	for _, layout := range timeLayouts() {
		if _, err := time.Parse(layout, text); err == nil {
			return true
		}
	}
	return false
}

// isNumber reports whether a string that starts with a digit or sign is read as a number.
func isNumber(s []byte) bool {
	for i, c := range s {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F', c == 'x', c == 'X', c == 'o', c == 'O', c == '_', c == '.':
		case c == '+' || c == '-':
			if i > 0 && s[i-1] != 'e' && s[i-1] != 'E' && s[i-1] != '_' {
				return false
			}
		default:
			return false
		}
	}
	plain := strings.ReplaceAll(string(s), "_", "")
	if _, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return true
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return true
	}
	if isYAMLFloat(plain) {
		if _, err := strconv.ParseFloat(plain, 64); err == nil {
			return true
		}
	}
	if digits, ok := strings.CutPrefix(plain, "0b"); ok {
		if _, err := strconv.ParseInt(digits, 2, 64); err == nil {
			return true
		}
		_, err := strconv.ParseUint(digits, 2, 64)
		return err == nil
	}
	if digits, ok := strings.CutPrefix(plain, "-0b"); ok {
		_, err := strconv.ParseInt("-"+digits, 2, 64)
		return err == nil
	}
	return false
}

var (
	yamlFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	base60    = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$`)
)

func isYAMLFloat(s string) bool { return yamlFloat.MatchString(s) }

func isBase60(s []byte) bool { return bytes.IndexByte(s, ':') > 0 && base60.Match(s) }

// compare is the library's order of keys: letters come after all other characters, and digits are compared as numbers.
func compare(a, b []byte) int {
	at := 0
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	for at > 0 && at < len(a) && at < len(b) && !utf8.RuneStart(a[at]) {
		at--
	}
	if at == len(a) || at == len(b) {
		return len(a) - len(b)
	}
	ar, _ := utf8.DecodeRune(a[at:])
	br, _ := utf8.DecodeRune(b[at:])
	if less(a, b, ar, br, at) {
		return -1
	}
	return 1
}

// less is compare for keys whose first difference, by characters, is at an index.
func less(a, b []byte, ar, br rune, at int) bool {
	al, bl := unicode.IsLetter(ar), unicode.IsLetter(br)
	if al && bl {
		return ar < br
	}
	if al || bl {
		return bl
	}
	var an, bn int64
	if ar == '0' || br == '0' {
		for before := a[:at]; len(before) > 0; {
			r, size := utf8.DecodeLastRune(before)
			if !unicode.IsDigit(r) {
				break
			}
			if r != '0' {
				an, bn = 1, 1
				break
			}
			before = before[:len(before)-size]
		}
	}
	an, adigits := countFrom(a[at:], an)
	bn, bdigits := countFrom(b[at:], bn)
	if an != bn {
		return an < bn
	}
	if adigits != bdigits {
		return adigits < bdigits
	}
	return ar < br
}

// countFrom continues the number n with the digits at the beginning of text. It returns the number and how many digits
// there are.
func countFrom(text []byte, n int64) (number int64, digits int) {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if !unicode.IsDigit(r) {
			break
		}
		n = n*10 + int64(r-'0')
		digits++
		text = text[size:]
	}
	return n, digits
}
