package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// maxStamp is how long a time and the space behind it can be.
const maxStamp = len("2006-01-02T15:04:05.000000000+07:00 ")

// stampOf returns the length of the time with its space that a line begins with; 0 if it
// begins with none, and -1 if more of the line is needed to say.
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

// stampTime is the time of a stamp of that length; false if it is none.
func stampTime(line []byte, length int) (t time.Time, ok bool) {
	if length <= 0 {
		return t, false
	}
	return t, t.UnmarshalText(line[:length-1]) == nil
}

// stampedLines reads lines that begin with times, and leaves out the times, or the lines
// that are too old, or both.
type stampedLines struct {
	from     io.Reader
	strip    bool
	since    time.Time // zero is all
	followed bool      // io.EOF is not the end

	within  bool // what comes next continues a line
	dropped bool // of which nothing is wanted
	held    []byte
	ended   bool
	small   []byte // what did not fit
	err     error
}

// Read fills in what is wanted of the lines that are there.
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

// read needs room for two times.
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

// filter moves what is wanted to the front, and says how much that is. What it cannot decide
// about yet it holds.
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

// Wait waits as the reader does.
func (s *stampedLines) Wait(ctx context.Context) error {
	err := s.from.(Waiter).Wait(ctx)
	if errors.Is(err, io.EOF) && len(s.held) > 0 && !s.ended {
		s.ended = true
		return nil // for what is held
	}
	return err
}

// maxTail is what is kept in memory of lines at the end of a reader that cannot seek.
const maxTail = 4 << 20

// lastLines returns a reader of the last lines that there are, and of those that come
// later, and says whether there are fewer than could be, because they are too large.
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

// seekTail moves to where the last lines behind start begin.
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

// tailStart returns where the last n lines between start and end begin, and how many lines
// there are from there on. What is behind the last line break is a line as well.
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
			block = block[:len(block)-1] // it ends the last line
		}
		for i := bytes.LastIndexByte(block, '\n'); i >= 0; i = bytes.LastIndexByte(block[:i], '\n') {
			if lines++; lines == n {
				return to + int64(i) + 1, lines, nil
			}
		}
	}
	return start, lines + 1, nil
}

// tailBuffer keeps the last lines of what is added.
type tailBuffer struct {
	bytes []byte
	from  int   // where what is kept begins
	lines int64 // that are complete
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
		if i < 0 { // one line that is too large: its end is kept
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

// behind reads bytes, and then from a reader.
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

// Wait waits as the reader does.
func (b *behind) Wait(ctx context.Context) error { return b.then.(Waiter).Wait(ctx) }
