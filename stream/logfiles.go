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

// LogFilesOptions bound what LogFiles keep. The zero value is the defaults.
type LogFilesOptions struct {
	// MaxFileBytes is how large a file becomes before the next is begun, but for one line.
	// 0 is 10 MiB.
	MaxFileBytes int64
	// MaxFiles is how many files there are of a run at most. 0 is 5.
	MaxFiles int
	// MaxLineBytes is how long a line is at most; longer ones are split. 0 is 64 KiB.
	MaxLineBytes int
}

// LogFiles are the logs of a process and of the one before it: what each run writes is cut
// into lines, each with its time, and kept in files of a folder, which readers tail and
// follow. One LogFiles has the folder to itself; its methods may be used concurrently.
//
// Nothing is synced: a crash of the machine can take back lines. What it leaves of half a
// line is taken away by OpenLogFiles.
type LogFiles struct {
	dir     string
	options LogFilesOptions

	mu   sync.Mutex
	runs []*logRun // the one before and this one
}

// logRun is what one process has logged.
type logRun struct {
	number int
	// The mutex of the LogFiles is held for these.
	files  []logPart // the oldest first
	newest int       // the number of the last file, also when it has been removed
	ended  bool
	wake   chan struct{} // closed when there is more; nil if no reader waits
}

// logPart is a file, with how much of it has been written.
type logPart struct {
	number int
	size   int64
}

// stampLayout is RFC 3339 in a fixed width.
const stampLayout = "2006-01-02T15:04:05.000000000Z"

// OpenLogFiles opens the logs in a folder, which is made if need be, for its owner alone.
// The runs in it have ended. Other files in it stay as they are.
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
	entries, err := os.ReadDir(l.dir) // in the order of runs and files
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

// add adds a file. The caller holds the mutex of the logs.
func (r *logRun) add(part logPart) {
	r.files, r.newest = append(r.files, part), part.number
}

func partName(run, number int) string { return fmt.Sprintf("%08d-%08d.log", run, number) }

func (l *LogFiles) path(r *logRun, number int) string {
	return filepath.Join(l.dir, partName(r.number, number))
}

// repair takes away what a crash has left behind the last line break, and returns the size.
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

// tidy removes files that are too many. The caller holds mu, or has the LogFiles to itself.
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

// Begin begins a run: what was written before is the previous log, and the one before that is
// removed. The run before ends, if it has not, and its writer fails. The writer takes what
// the process prints, in any pieces; its Write returns when that is in the file, except what
// is behind the last line break. A Write that fails has lost lines, and the next may
// succeed. Close ends the run. The writer may be used concurrently, by which pieces of lines
// may be mixed.
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

// end tells readers that there will be nothing more. The caller holds mu.
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

// writeBytes are written at once.
const writeBytes = 64 << 10

// Write adds to the log.
func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, fmt.Errorf("write a log: %w", fs.ErrClosed)
	}
	// A clock that is set back must not put lines out of order, by which since finds them.
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

// full says whether the file is, with the lines that are not written yet.
func (w *logWriter) full() bool {
	return w.size+int64(len(w.lines)) >= w.logs.options.MaxFileBytes
}

// flush writes the lines, and begins the next file when this one is full.
func (w *logWriter) flush() error {
	if len(w.lines) == 0 {
		return nil
	}
	lines := w.lines
	if w.lines = w.lines[:0]; cap(lines) > 4*writeBytes {
		w.lines = nil // of long lines
	}
	if w.ended() {
		return fs.ErrClosed
	}
	if w.size >= w.logs.options.MaxFileBytes { // as the next one could not be begun
		if err := w.rotate(); err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(lines, w.size); err != nil {
		_ = w.file.Truncate(w.size) // best effort: the next lines are written over it
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

// ended says whether another run has begun.
func (w *logWriter) ended() bool {
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	return w.run.ended
}

// publish shows readers what has been written.
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

// nextFile begins a file. The caller holds the mutex of the logs.
func (w *logWriter) nextFile() error {
	f, err := os.OpenFile(w.logs.path(w.run, w.number+1), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w.file, w.number, w.size = f, w.number+1, 0
	w.run.add(logPart{number: w.number})
	return nil
}

// Close ends the run. What is behind the last line break becomes a line.
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

// Open returns what a client wants to read of the current run or, with Previous, of the one
// before it. It does all of the options but Container and LimitBytes, and clears what it
// does; lines are found by their times, and from the end, without reading the others. With
// Follow, what is returned is a Waiter, and ends with the run. Without, it ends where the
// log ended when Open was called.
//
// The error is a BadRequest if there is no such run. A reader fails that is so slow that
// the files that it has yet to read have been removed. It costs a file handle
// until it is closed, and must not be used concurrently.
func (l *LogFiles) Open(o *LogOptions) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := len(l.runs) - 1
	if o.Previous {
		wanted--
	}
	switch {
	case wanted < 0 && o.Previous:
		return nil, apierrors.NewBadRequest("previous: there is no log of a run before this one")
	case wanted < 0:
		return nil, apierrors.NewBadRequest("nothing has been logged yet")
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

// strippedLog is a log without the times.
type strippedLog struct {
	stampedLines
	io.Closer
}

var _ Waiter = (*strippedLog)(nil)

// position is where a line begins.
type position struct {
	file   int
	offset int64
}

func (p position) before(o position) bool {
	return p.file < o.file || p.file == o.file && p.offset < o.offset
}

// logReader reads the lines of a run with their times.
type logReader struct {
	logs   *LogFiles
	run    *logRun
	follow bool
	end    position // of what is read without follow
	at     position
	file   *os.File // that of at; nil if it is not open
}

var _ Waiter = (*logReader)(nil)

// errRemoved is what a reader gets that is too slow.
var errRemoved = errors.New("the lines that come next have been removed: they were written faster than they were read")

// start finds the first line that is wanted. The caller holds the mutex of the logs, so that
// files stay.
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
	// In the last file that begins before that time is the first line that does not.
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

// firstSince finds the first line of the open file that is not older, by bisection, as times
// never fall in a run; size if there is none.
func (r *logReader) firstSince(size int64, since time.Time) (int64, error) {
	low, high := int64(0), size // lines that begin before low are older, none from high on is
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

// lineFrom returns where the first line begins at an offset or behind it; size if none does.
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

// open opens a file in place of the one that is open.
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

// Read reads lines that are there.
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

// written returns how much there is of the file that is read, and whether there is one
// behind it.
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
		info, err := r.file.Stat() // it was removed when it was complete
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
