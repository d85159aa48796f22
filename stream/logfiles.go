package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// LogFilesOptions bound the size of LogFiles. The zero value of a field means its default; a negative value is an
// error of OpenLogFiles.
type LogFilesOptions struct {
	// MaxFileBytes is the size, in bytes, at which a file is complete and the next one begins. A file may exceed it
	// by one line. 0 means 10 MiB.
	MaxFileBytes int64
	// MaxFiles bounds the number of files of one run. 0 means 5.
	MaxFiles int
	// MaxLineBytes bounds the length of a line in bytes; longer lines are split. 0 means 64 KiB.
	MaxLineBytes int
}

// LogFiles are the logs of a process and of the run before it. The output of each run is cut into lines, each with
// its time, and kept in files of a directory; readers tail and follow them. A LogFiles needs the directory for
// itself. Its methods may be called concurrently.
//
// Nothing is synced: a crash of the machine may lose lines. OpenLogFiles removes a partial last line that a crash
// left.
type LogFiles struct {
	dir     string
	options LogFilesOptions

	mu   sync.Mutex
	runs []*logRun // the previous run and the current one
}

// logRun is the log of one process.
type logRun struct {
	number int
	// The mutex of the LogFiles guards the fields below.
	files  []logPart // oldest first
	newest int       // number of the last file, even after that file has been removed
	ended  bool
	wake   chan struct{} // closed when there is more to read; nil if no reader waits
}

// logPart is a file and the number of bytes written to it.
type logPart struct {
	number int
	size   int64
}

// stampLayout is RFC 3339 with a fixed width.
const stampLayout = "2006-01-02T15:04:05.000000000Z"

// OpenLogFiles opens the logs in a directory. It creates a missing directory with access for its owner only. All runs
// found there count as ended. Other files in the directory are left alone.
func OpenLogFiles(dir string, o LogFilesOptions) (*LogFiles, error) {
	if o.MaxFileBytes < 0 || o.MaxFiles < 0 || o.MaxLineBytes < 0 {
		return nil, fmt.Errorf("open logs in %s: a limit is negative: %+v", dir, o)
	}
	o.MaxFileBytes, o.MaxFiles, o.MaxLineBytes = or(o.MaxFileBytes, 10<<20), or(o.MaxFiles, 5), or(o.MaxLineBytes, 64<<10)
	l := &LogFiles{dir: dir, options: o}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("open logs in %s: %w", dir, err)
	}
	return l, nil
}

func or[N int | int64](n, otherwise N) N {
	if n == 0 {
		return otherwise
	}
	return n
}

func (l *LogFiles) load() error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(l.dir) // sorted by run and file
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var run, number int
		if _, err := fmt.Sscanf(entry.Name(), "%d-%d.log", &run, &number); err != nil || entry.Name() != partName(run, number) {
			continue
		}
		size, err := repair(filepath.Join(l.dir, entry.Name()))
		if err != nil {
			return err
		}
		if len(l.runs) == 0 || l.runs[len(l.runs)-1].number != run {
			l.runs = append(l.runs, &logRun{number: run, ended: true})
		}
		r := l.runs[len(l.runs)-1]
		r.add(logPart{number, size})
	}
	return l.tidy()
}

// add appends a file. The caller holds the mutex of the logs.
func (r *logRun) add(part logPart) {
	r.files, r.newest = append(r.files, part), part.number
}

func partName(run, number int) string { return fmt.Sprintf("%08d-%08d.log", run, number) }

func (l *LogFiles) path(r *logRun, number int) string {
	return filepath.Join(l.dir, partName(r.number, number))
}

// repair truncates the file behind its last line break, since a crash may have left a partial line there. It returns
// the new size.
func repair(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buffer := make([]byte, logBuffer)
	for to := info.Size(); to > 0; {
		block := buffer[:min(int64(len(buffer)), to)]
		if _, err := f.ReadAt(block, to-int64(len(block))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(block, '\n'); i >= 0 {
			end := to - int64(len(block)) + int64(i) + 1
			if end == info.Size() {
				return end, nil
			}
			return end, f.Truncate(end)
		}
		to -= int64(len(block))
	}
	return 0, f.Truncate(0)
}

// tidy removes excess files. The caller holds mu, or nothing else uses the LogFiles yet.
func (l *LogFiles) tidy() error {
	var errs []error
	remove := func(r *logRun, number int) {
		if err := os.Remove(l.path(r, number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for len(l.runs) > 2 {
		for _, part := range l.runs[0].files {
			remove(l.runs[0], part.number)
		}
		l.runs[0].files = nil
		l.runs = slices.Delete(l.runs, 0, 1)
	}
	for _, r := range l.runs {
		for len(r.files) > l.options.MaxFiles {
			remove(r, r.files[0].number)
			r.files = slices.Delete(r.files, 0, 1)
		}
	}
	return errors.Join(errs...)
}

// Begin begins a run: the log of the last run becomes the previous log, and the previous log is removed. If the last
// run has not ended, it ends now and its writer fails from then on. The returned writer takes the output of the
// process in pieces of any size. Write returns when all complete lines are in the file; text behind the last line
// break stays in memory until the line is complete. A failed Write has lost lines; the next may succeed. Close ends
// the run. The writer may be used concurrently, but then pieces of lines may be mixed.
func (l *LogFiles) Begin() (io.WriteCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := 1
	if len(l.runs) > 0 {
		last := l.runs[len(l.runs)-1]
		last.end()
		number = last.number + 1
	}
	r := &logRun{number: number}
	w := &logWriter{logs: l, run: r}
	if err := w.nextFile(); err != nil {
		return nil, fmt.Errorf("begin a log in %s: %w", l.dir, err)
	}
	l.runs = append(l.runs, r)
	if err := l.tidy(); err != nil {
		r.end()
		return nil, errors.Join(fmt.Errorf("begin a log in %s: %w", l.dir, err), w.file.Close())
	}
	return w, nil
}

// end wakes readers, for which the log now has an end. The caller holds mu.
func (r *logRun) end() {
	r.ended = true
	r.notify()
}

func (r *logRun) notify() {
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// logWriter writes the lines of a run.
type logWriter struct {
	logs *LogFiles
	run  *logRun

	mu      sync.Mutex
	file    *os.File
	number  int // of the file
	size    int64
	partial []byte
	lines   []byte
	stamp   []byte
	last    time.Time
	closed  bool
}

// writeBytes is the size from which pending lines are written to the file.
const writeBytes = 64 << 10

// Write appends to the log.
func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, fmt.Errorf("write a log: %w", fs.ErrClosed)
	}
	// Readers find a time by bisection, so a clock that is set back must not put times out of order.
	if now := time.Now().UTC(); now.After(w.last) {
		w.last = now
	}
	w.stamp = append(w.last.AppendFormat(w.stamp[:0], stampLayout), ' ')
	var errs []error
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		most := w.logs.options.MaxLineBytes - len(w.partial)
		switch {
		case end >= 0 && end <= most:
			w.line(rest[:end])
			rest = rest[end+1:]
		case len(rest) > most:
			w.line(rest[:most])
			rest = rest[most:]
		default:
			w.partial = append(w.partial, rest...)
			rest = nil
		}
		if len(w.lines) >= writeBytes || len(w.lines) > 0 && w.full() {
			errs = append(errs, w.flush())
		}
	}
	if errs = append(errs, w.flush()); errors.Join(errs...) != nil {
		return 0, fmt.Errorf("write a log in %s: %w", w.logs.dir, errors.Join(errs...))
	}
	return len(p), nil
}

func (w *logWriter) line(end []byte) {
	w.lines = append(append(append(append(w.lines, w.stamp...), w.partial...), end...), '\n')
	w.partial = w.partial[:0]
}

// full reports whether the file, with its pending lines, has reached its maximum size.
func (w *logWriter) full() bool {
	return w.size+int64(len(w.lines)) >= w.logs.options.MaxFileBytes
}

// flush writes the pending lines, and begins the next file if this one is full.
func (w *logWriter) flush() error {
	if len(w.lines) == 0 {
		return nil
	}
	lines := w.lines
	if w.lines = w.lines[:0]; cap(lines) > 4*writeBytes {
		w.lines = nil // grown by long lines: do not keep it
	}
	if w.ended() {
		return fs.ErrClosed
	}
	if w.size >= w.logs.options.MaxFileBytes { // the next file could not be begun
		if err := w.rotate(); err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(lines, w.size); err != nil {
		_ = w.file.Truncate(w.size) // best effort: the next lines overwrite it
		return err
	}
	w.size += int64(len(lines))
	if err := w.publish(); err != nil {
		return err
	}
	if w.size >= w.logs.options.MaxFileBytes {
		return w.rotate()
	}
	return nil
}

// ended reports whether another run has begun.
func (w *logWriter) ended() bool {
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	return w.run.ended
}

// publish makes the written lines visible to readers.
func (w *logWriter) publish() error {
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	if w.run.ended {
		return fs.ErrClosed
	}
	w.run.files[len(w.run.files)-1].size = w.size
	w.run.notify()
	return nil
}

func (w *logWriter) rotate() error {
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	if w.run.ended {
		return fs.ErrClosed
	}
	full := w.file
	if err := w.nextFile(); err != nil {
		return err
	}
	w.run.notify()
	return errors.Join(full.Close(), w.logs.tidy())
}

// nextFile begins the next file. The caller holds the mutex of the logs.
func (w *logWriter) nextFile() error {
	f, err := os.OpenFile(w.logs.path(w.run, w.number+1), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w.file, w.number, w.size = f, w.number+1, 0
	w.run.add(logPart{number: w.number})
	return nil
}

// Close ends the run. Text behind the last line break becomes a line.
func (w *logWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	var err error
	if len(w.partial) > 0 && !w.ended() {
		w.line(nil)
		err = w.flush()
	}
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	w.run.end()
	return errors.Join(err, w.file.Close())
}

// Open returns a reader of the current run or, with Previous, of the run before it. It handles all options but
// Container and LimitBytes, and clears the options that it handles. It finds the lines for SinceTime and TailLines without
// reading the others. With Follow, the reader is a Waiter and ends with the run; without Follow, it ends where the
// log ended when Open was called.
//
// The error is a BadRequest if there is no such run. A reader fails if it is so slow that its next files have been
// removed. It holds a file handle until it is closed, and must not be used concurrently.
func (l *LogFiles) Open(o *LogOptions) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := len(l.runs) - 1
	if o.Previous {
		wanted--
	}
	switch {
	case wanted < 0 && o.Previous:
		return nil, apierrors.NewBadRequest("previous: no log of a previous run")
	case wanted < 0:
		return nil, apierrors.NewBadRequest("the log is still empty")
	}
	r := &logReader{logs: l, run: l.runs[wanted], follow: o.Follow}
	last := r.run.files[len(r.run.files)-1]
	r.end = position{last.number, last.size}
	if err := r.start(o); err != nil {
		return nil, errors.Join(fmt.Errorf("open the log in %s: %w", l.dir, err), r.Close())
	}
	stripped := !o.Timestamps
	o.Previous, o.SinceTime, o.SinceSeconds, o.TailLines, o.Timestamps = false, nil, nil, nil, false
	if !stripped {
		return r, nil
	}
	return &strippedLog{stampedLines{from: r, strip: true, followed: r.follow}, r}, nil
}

// strippedLog is a log without its times.
type strippedLog struct {
	stampedLines
	io.Closer
}

var _ Waiter = (*strippedLog)(nil)

// position is the beginning of a line.
type position struct {
	file   int
	offset int64
}

func (p position) before(o position) bool {
	return p.file < o.file || p.file == o.file && p.offset < o.offset
}

// logReader reads the lines of a run, including their times.
type logReader struct {
	logs   *LogFiles
	run    *logRun
	follow bool
	end    position // where it stops without follow
	at     position
	file   *os.File // open file, which at is in; nil if none is open
}

var _ Waiter = (*logReader)(nil)

// errRemoved is the error of a reader that was too slow.
var errRemoved = errors.New("the next lines were removed: they were written faster than they were read")

// start moves to the first line that the options select. The caller holds the mutex of the logs, so that no file is
// removed meanwhile.
func (r *logReader) start(o *LogOptions) error {
	files := r.run.files
	r.at = position{file: files[0].number}
	if o.TailLines != nil {
		r.at = r.end
		for left, i := *o.TailLines, len(files)-1; i >= 0 && left > 0; i-- {
			if err := r.open(files[i].number); err != nil {
				return err
			}
			offset, lines, err := tailStart(r.readAt, 0, files[i].size, left)
			if err != nil {
				return err
			}
			r.at = position{files[i].number, offset}
			left -= lines
		}
	}
	since := o.SinceTime
	if since == nil && o.SinceSeconds != nil {
		since = sinceSeconds(*o.SinceSeconds)
	}
	if since == nil {
		return nil
	}
	// The last file that begins before that time holds the first line that is not older.
	for i := len(files) - 1; i >= 0; i-- {
		if err := r.open(files[i].number); err != nil {
			return err
		}
		offset, err := r.firstSince(files[i].size, since.Time)
		if err != nil {
			return err
		}
		if found := (position{files[i].number, offset}); offset > 0 || i == 0 {
			if r.at.before(found) {
				r.at = found
			}
			return nil
		}
	}
	return nil
}

func (r *logReader) readAt(p []byte, offset int64) error {
	_, err := r.file.ReadAt(p, offset)
	return err
}

// firstSince finds the first line of the open file that is not older than since, or size if there is none. It bisects
// the file: times never decrease within a run.
func (r *logReader) firstSince(size int64, since time.Time) (int64, error) {
	low, high := int64(0), size // lines that begin before low are older; no line from high on is
	for low < high {
		middle := low + (high-low)/2
		begin, err := r.lineFrom(middle, size)
		if err != nil {
			return 0, err
		}
		if begin >= high {
			high = middle
			continue
		}
		var stamp [maxStamp]byte
		n, err := r.file.ReadAt(stamp[:min(int64(len(stamp)), size-begin)], begin)
		if err != nil {
			return 0, err
		}
		if t, ok := stampTime(stamp[:n], stampOf(stamp[:n])); ok && t.Before(since) {
			low = begin + 1
		} else {
			high = middle
		}
	}
	return r.lineFrom(low, size)
}

// lineFrom returns the start of the first line that begins at or behind an offset, or size if there is none.
func (r *logReader) lineFrom(offset, size int64) (int64, error) {
	if offset == 0 {
		return 0, nil
	}
	buffer := make([]byte, 1<<10)
	for at := offset - 1; at < size; {
		n, err := r.file.ReadAt(buffer[:min(int64(len(buffer)), size-at)], at)
		if err != nil {
			return 0, err
		}
		if i := bytes.IndexByte(buffer[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		at += int64(n)
	}
	return size, nil
}

// open opens a file in place of the currently open file.
func (r *logReader) open(number int) error {
	if err := r.Close(); err != nil {
		return err
	}
	f, err := os.Open(r.logs.path(r.run, number))
	if errors.Is(err, fs.ErrNotExist) {
		return errRemoved
	}
	r.file = f
	return err
}

// Close closes the file.
func (r *logReader) Close() error {
	f := r.file
	r.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}

// Read reads lines that have been written, and does not wait for more.
func (r *logReader) Read(p []byte) (int, error) {
	for {
		size, more, err := r.written()
		if err != nil {
			return 0, err
		}
		if n := size - r.at.offset; n > 0 {
			if r.file == nil || filepath.Base(r.file.Name()) != partName(r.run.number, r.at.file) {
				if err := r.open(r.at.file); err != nil {
					return 0, err
				}
			}
			k, err := r.file.ReadAt(p[:min(int64(len(p)), n)], r.at.offset)
			r.at.offset += int64(k)
			return k, err
		}
		if !more {
			return 0, io.EOF
		}
		r.at = position{file: r.at.file + 1}
	}
}

// written returns the number of bytes written to the current file, and whether another file follows it.
func (r *logReader) written() (size int64, more bool, err error) {
	r.logs.mu.Lock()
	defer r.logs.mu.Unlock()
	return r.writtenLocked()
}

func (r *logReader) writtenLocked() (size int64, more bool, err error) {
	i := slices.IndexFunc(r.run.files, func(part logPart) bool { return part.number == r.at.file })
	switch {
	case i >= 0:
		size, more = r.run.files[i].size, i < len(r.run.files)-1
	case r.file != nil && filepath.Base(r.file.Name()) == partName(r.run.number, r.at.file):
		info, err := r.file.Stat() // it was removed, but only after it was complete
		if err != nil {
			return 0, false, err
		}
		size, more = info.Size(), r.at.file < r.run.newest
	default:
		return 0, false, errRemoved
	}
	if !r.follow && r.at.file == r.end.file {
		size, more = min(size, r.end.offset), false
	}
	return size, more, nil
}

// Wait waits until there is more to read, or the run ends.
func (r *logReader) Wait(ctx context.Context) error {
	for {
		r.logs.mu.Lock()
		size, more, err := r.writtenLocked()
		if err != nil || size > r.at.offset || more {
			r.logs.mu.Unlock()
			return err
		}
		if r.run.ended {
			r.logs.mu.Unlock()
			return io.EOF
		}
		if r.run.wake == nil {
			r.run.wake = make(chan struct{})
		}
		wake := r.run.wake
		r.logs.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
