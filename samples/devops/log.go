package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxLog bounds the log of a run.
	maxLog = 64 << 20
	// followInterval is the interval at which a followed log is read: another process may write it.
	followInterval = 200 * time.Millisecond

	// A log has the first name while it is written, and the second when it is complete.
	growingLog  = "log.part"
	completeLog = "log"
)

// folderOf returns the folder of a run, which holds its log.
func folderOf(dir string, uid types.UID) string {
	return filepath.Join(dir, filepath.Base(string(uid)))
}

// runLog writes the log of a run. It may be used concurrently.
type runLog struct {
	mu   sync.Mutex
	file *os.File
	left int64
	err  error
}

// beginLog creates the log in the folder of a run.
func beginLog(folder string) (*runLog, error) {
	file, err := os.OpenFile(filepath.Join(folder, growingLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin the log: %w", err)
	}
	return &runLog{file: file, left: maxLog}, nil
}

// Write never fails, since a full disk must not end a script: it drops the output from the first error on.
func (l *runLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.left > 0 {
		kept := p[:min(int64(len(p)), l.left)]
		l.left -= int64(len(kept))
		_, l.err = l.file.Write(kept)
		if l.err == nil && l.left == 0 {
			_, l.err = l.file.WriteString("\n--- the log is full: what follows is left out\n")
		}
	}
	return len(p), nil
}

// say writes a line of the controller, even to a log that is full.
func (l *runLog) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.file, "--- "+format+"\n", args...)
	}
}

// close completes the log.
func (l *runLog) close(folder string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.file.Close(), completeTheLog(folder))
}

// completeTheLog marks the log as complete, for readers that follow it.
func completeTheLog(folder string) error {
	err := os.Rename(filepath.Join(folder, growingLog), filepath.Join(folder, completeLog))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was complete, or never existed
	}
	return err
}

// concludeLog completes the log of another controller, with a last line.
func concludeLog(folder, line string) error {
	file, err := os.OpenFile(filepath.Join(folder, growingLog), os.O_APPEND|os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("conclude the log: %w", err)
	}
	_, err = fmt.Fprintf(file, "\n--- %s\n", line)
	return errors.Join(err, file.Close(), completeTheLog(folder))
}

// openLog opens the log of a run, and reports whether it is complete.
func openLog(folder string) (file *os.File, complete bool, err error) {
	for _, name := range []string{growingLog, completeLog, growingLog} { // it may be completed in between
		if file, err = os.Open(filepath.Join(folder, name)); !errors.Is(err, fs.ErrNotExist) {
			return file, name == completeLog, err
		}
	}
	return nil, false, err
}

// copyLog writes a log from its beginning. With follow, it continues until the log is complete. ended reports whether
// a run will never have a log. copyLog calls flush before it waits.
func copyLog(ctx context.Context, w io.Writer, flush func(), folder string, follow bool, ended func() (bool, error)) error {
	look := time.NewTicker(followInterval)
	defer look.Stop()
	wait := func() error {
		flush()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			return nil
		}
	}
	file, complete, err := openLog(folder)
	for ; errors.Is(err, fs.ErrNotExist) && follow; file, complete, err = openLog(folder) {
		if over, err := ended(); over || err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		if _, err := io.Copy(w, file); err != nil {
			return err
		}
		if complete || !follow {
			return nil
		}
		if err := wait(); err != nil {
			return err
		}
		// Read once more after the log is complete, since it may have grown before.
		_, err := os.Stat(filepath.Join(folder, growingLog))
		complete = errors.Is(err, fs.ErrNotExist)
	}
}
