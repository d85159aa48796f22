package stream

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestStampedLines_anyChunks(t *testing.T) {
	t.Parallel()
	const log = "2026-11-23T10:00:00Z first\n" +
		"2026-11-23T10:00:01.5+07:00 east of it\n" +
		"no time\n" +
		"\n" +
		"2026-11-23T10:00:02.123456789Z \n" +
		"2026-11-23T99 is no time\n" +
		"2026-11-23T10:00:03Z 2026-11-23T10:00:03Z of its own\n" +
		"2026-11-23T10:00:04.000000001Z last\n" +
		"hal"
	const want = "first\neast of it\nno time\n\n\n2026-11-23T99 is no time\n2026-11-23T10:00:03Z of its own\nlast\nhal"
	for _, size := range []int{1, 3, 100, 5000} {
		for name, from := range map[string]io.Reader{
			"whole":     strings.NewReader(log),
			"bytes":     iotest.OneByteReader(strings.NewReader(log)),
			"half":      iotest.HalfReader(strings.NewReader(log)),
			"with data": iotest.DataErrReader(strings.NewReader(log)),
		} {
			var got strings.Builder
			buffer := make([]byte, size)
			if _, err := io.CopyBuffer(&got, onlyReader{&stampedLines{from: from, strip: true}}, buffer); err != nil || got.String() != want {
				t.Errorf("%s, by %d: %v: %q", name, size, err, got.String())
			}
		}
	}
	since := time.Date(2026, 11, 23, 10, 0, 2, 0, time.UTC)
	got, err := io.ReadAll(iotest.OneByteReader(&stampedLines{from: strings.NewReader(log), since: since}))
	_, wanted, _ := strings.Cut(log, "\n\n")
	if err != nil || string(got) != wanted {
		t.Errorf("%v: %q", err, got)
	}
}

// onlyReader hides all methods of a reader but Read.
type onlyReader struct{ io.Reader }

func TestLastLines_everyReader(t *testing.T) {
	t.Parallel()
	for _, log := range []string{"", "\n", "a", "a\nb", "a\nb\n", "\n\n\n", numbered(1, 30_000)} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{0, 1, 2, 3, 100, 29_999, 30_000, 30_001} {
			lines := strings.SplitAfter(log, "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			want := strings.Join(lines[max(0, len(lines)-int(n)):], "")
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for name, from := range map[string]io.Reader{"seeks": f, "reads": onlyReader{strings.NewReader(log)},
				"bytes": iotest.OneByteReader(strings.NewReader(log))} {
				tail, fewer, err := lastLines(from, n)
				if err != nil || fewer {
					t.Fatal(fewer, err)
				}
				if got, err := io.ReadAll(tail); err != nil || string(got) != want {
					t.Errorf("%d of %d bytes, %s: %v, %d bytes, not %d", n, len(log), name, err, len(got), len(want))
				}
			}
		}
	}
}

func TestLastLines_noSeeker_isBounded(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", 999) + "\n"
	for name, log := range map[string]string{"lines": strings.Repeat(line, 20_000), "a line": strings.Repeat("y", 20_000_000)} {
		tail, fewer, err := lastLines(onlyReader{strings.NewReader(log)}, 15_000)
		if err != nil || !fewer {
			t.Fatal(fewer, err)
		}
		kept := tail.(*behind).first
		if cap(kept) > 4*maxTail || len(kept) < maxTail-len(line) || len(kept) > maxTail {
			t.Errorf("%s: %d bytes are kept, in %d", name, len(kept), cap(kept))
		}
		if name == "lines" && len(kept)%len(line) != 0 {
			t.Errorf("%s: the first is not whole", name)
		}
	}
}

func BenchmarkStampedLines(b *testing.B) {
	var log strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&log, "2026-11-23T10:00:04.000000001Z this is line %d of a log that is followed\n", i)
	}
	b.SetBytes(int64(log.Len()))
	for b.Loop() {
		buffer := make([]byte, logBuffer)
		if _, err := io.CopyBuffer(
			onlyWriter{io.Discard},
			&stampedLines{from: strings.NewReader(log.String()), strip: true},
			buffer,
		); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/line")
}

type onlyWriter struct{ io.Writer }
