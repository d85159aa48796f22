package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// maxStamp is the maximum length of a time and the space behind it.
const maxStamp = len("2006-01-02T15:04:05.000000000+07:00 ")

// stampOf returns the length of the time at the beginning of a line, including its space. It returns 0 if the line
// does not begin with a time, and -1 if it needs more of the line to decide.
func stampOf(line []byte) int {
	const seconds = len("2006-01-02T15:04:05")
	if end := bytes.IndexByte(line[:min(len(line), maxStamp)], '\n'); end >= 0 {
		line = line[:end]
	} else if len(line) < maxStamp {
		if bytes.IndexByte(line, ' ') < 0 {
			return -1
		}
	}
	if len(line) <= seconds || line[4] != '-' || line[7] != '-' || line[10] != 'T' || line[13] != ':' || line[16] != ':' {
		return 0
	}
	for _, i := range [...]int{0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18} {
		if line[i] < '0' || line[i] > '9' {
			return 0
		}
	}
	return 1 + bytes.IndexByte(line[:min(len(line), maxStamp)], ' ')
}

// stampTime returns the time of a stamp that has this length, and false if it is not a valid time.
func stampTime(line []byte, length int) (t time.Time, ok bool) {
	if length <= 0 {
		return t, false
	}
	return t, t.UnmarshalText(line[:length-1]) == nil
}

// stampedLines reads lines that begin with times, and drops the times, the lines that are too old, or both.
type stampedLines struct {
	from     io.Reader
	strip    bool
	since    time.Time // zero selects all lines
	followed bool      // io.EOF is not the end

	within  bool // the next bytes continue a line
	dropped bool // the current line is dropped
	held    []byte
	ended   bool
	small   []byte // output that did not fit
	err     error
}

// Read fills p with the selected output. It needs a buffer of its own if p is too small for read.
func (s *stampedLines) Read(p []byte) (int, error) {
	if len(s.small) > 0 {
		n := copy(p, s.small)
		s.small = s.small[n:]
		return n, nil
	}
	if len(p) > 2*maxStamp {
		return s.read(p)
	}
	buffer := make([]byte, 4<<10)
	n, err := s.read(buffer)
	s.small = buffer[:n]
	n = copy(p, s.small)
	s.small = s.small[n:]
	return n, err
}

// read needs room for two times in p.
func (s *stampedLines) read(p []byte) (int, error) {
	for {
		if s.err != nil {
			err := s.err
			s.err = nil
			return 0, err
		}
		held := copy(p, s.held)
		s.held = s.held[:0]
		n, err := s.from.Read(p[held:])
		end := errors.Is(err, io.EOF) && (!s.followed || s.ended)
		out := s.filter(p[:held+n], end)
		if out > 0 {
			s.err = err
			return out, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// filter moves the selected output to the front of p and returns its length. It holds bytes about which it cannot
// decide yet.
func (s *stampedLines) filter(p []byte, end bool) int {
	out := 0
	for in := 0; in < len(p); {
		if !s.within {
			n := stampOf(p[in:])
			if n < 0 && !end {
				s.held = append(s.held, p[in:]...)
				break
			}
			if !s.since.IsZero() {
				if t, ok := stampTime(p[in:], n); ok {
					s.dropped = t.Before(s.since)
				}
			}
			if s.strip && n > 0 {
				in += n
			}
			s.within = true
		}
		rest := p[in:]
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			rest, s.within = rest[:i+1], false
		}
		in += len(rest)
		if !s.dropped {
			out += copy(p[out:], rest)
		}
	}
	return out
}

// Wait waits for the underlying reader.
func (s *stampedLines) Wait(ctx context.Context) error {
	err := s.from.(Waiter).Wait(ctx)
	if errors.Is(err, io.EOF) && len(s.held) > 0 && !s.ended {
		s.ended = true
		return nil // the held bytes are still to be read
	}
	return err
}

// maxTail bounds the memory for the last lines of a reader that cannot seek.
const maxTail = 4 << 20

// lastLines returns a reader of the last n lines and of all lines that come later. It reports whether the reader has
// fewer lines than exist, because n lines are too large for the memory.
func lastLines(from io.Reader, n int64) (tail io.Reader, fewer bool, err error) {
	if seeker, ok := from.(io.ReadSeeker); ok {
		start, err := seeker.Seek(0, io.SeekCurrent)
		if err == nil {
			return from, false, seekTail(seeker, start, n)
		}
	}
	var lines tailBuffer
	buffer := make([]byte, logBuffer)
	for {
		k, err := from.Read(buffer)
		lines.add(buffer[:k], n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	return &behind{lines.kept(), from}, lines.fewer, nil
}

// seekTail moves to the beginning of the last n lines behind start.
func seekTail(from io.ReadSeeker, start, n int64) error {
	end, err := from.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	at, _, err := tailStart(func(p []byte, offset int64) error {
		if _, err := from.Seek(offset, io.SeekStart); err != nil {
			return err
		}
		_, err := io.ReadFull(from, p)
		return err
	}, start, end, n)
	if err != nil {
		return err
	}
	_, err = from.Seek(at, io.SeekStart)
	return err
}

// tailStart returns the offset of the last n lines between start and end, and the number of lines from there on. Text
// behind the last line break counts as a line.
func tailStart(readAt func(p []byte, offset int64) error, start, end, n int64) (at, lines int64, err error) {
	if n <= 0 || start >= end {
		return end, 0, nil
	}
	buffer := make([]byte, min(logBuffer, end-start))
	for to := end; to > start; {
		block := buffer[:min(int64(len(buffer)), to-start)]
		to -= int64(len(block))
		if err := readAt(block, to); err != nil {
			return 0, 0, err
		}
		if to+int64(len(block)) == end && block[len(block)-1] == '\n' {
			block = block[:len(block)-1] // the final line break ends the last line
		}
		for i := bytes.LastIndexByte(block, '\n'); i >= 0; i = bytes.LastIndexByte(block[:i], '\n') {
			if lines++; lines == n {
				return to + int64(i) + 1, lines, nil
			}
		}
	}
	return start, lines + 1, nil
}

// tailBuffer keeps the last lines of its input.
type tailBuffer struct {
	bytes []byte
	from  int   // offset of the kept bytes
	lines int64 // complete lines
	fewer bool
}

func (t *tailBuffer) add(p []byte, n int64) {
	if n <= 0 {
		return
	}
	t.bytes = append(t.bytes, p...)
	t.lines += int64(bytes.Count(p, []byte("\n")))
	for open := int64(0); ; t.lines-- {
		if open = 0; len(t.bytes) > 0 && t.bytes[len(t.bytes)-1] != '\n' {
			open = 1
		}
		tooLarge := len(t.bytes)-t.from > maxTail
		if t.lines+open <= n && !tooLarge {
			break
		}
		i := bytes.IndexByte(t.bytes[t.from:], '\n')
		if i < 0 { // a single line that is too large: keep its end
			t.from, t.fewer = len(t.bytes)-maxTail, true
			break
		}
		t.from += i + 1
		t.fewer = t.fewer || t.lines+open <= n
	}
	if t.from > len(t.bytes)/2 {
		t.bytes = t.bytes[:copy(t.bytes, t.bytes[t.from:])]
		t.from = 0
	}
}

func (t *tailBuffer) kept() []byte { return t.bytes[t.from:] }

// behind reads bytes first, and then from a reader.
type behind struct {
	first []byte
	then  io.Reader
}

func (b *behind) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		b.first = nil
		return b.then.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// Wait waits for the reader.
func (b *behind) Wait(ctx context.Context) error { return b.then.(Waiter).Wait(ctx) }
