package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// logSize is the size of a log from the beginning, because syncing overwritten blocks takes a disk the least time. At
// its end the log begins anew: it is not read.
const logSize = 64 << 20

// syncedLog is a file that records are appended to. Records that arrive during a sync share the next one.
type syncedLog struct {
	file *os.File

	mu   sync.Mutex
	next *group // of the next sync

	syncing sync.Mutex
	at      int64
}

// group is a set of records that are synced together.
type group struct {
	records []byte
	synced  bool
	err     error
}

func openLog(path string) (*syncedLog, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create the log: %w", err)
	}
	l := &syncedLog{file: file, next: &group{}}
	zeroes := make([]byte, 1<<20)
	for written := 0; written < logSize && err == nil; written += len(zeroes) {
		_, err = file.Write(zeroes)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("fill the log: %w", err)
	}
	return l, nil
}

func (l *syncedLog) close() { _ = l.file.Close() }

// append returns when a record has been synced.
func (l *syncedLog) append(record []byte) error {
	l.mu.Lock()
	mine := l.next
	mine.records = append(mine.records, record...)
	l.mu.Unlock()

	l.syncing.Lock()
	defer l.syncing.Unlock()
	if mine.synced {
		return mine.err
	}
	l.mu.Lock()
	l.next = &group{}
	l.mu.Unlock()
	mine.err = l.write(mine.records)
	mine.synced = true
	return mine.err
}

// write needs syncing.
func (l *syncedLog) write(records []byte) error {
	if l.at+int64(len(records)) > logSize {
		l.at = 0
	}
	if _, err := l.file.WriteAt(records, l.at); err != nil {
		return fmt.Errorf("write to the log: %w", err)
	}
	l.at += int64(len(records))
	if err := syscall.Fdatasync(int(l.file.Fd())); err != nil {
		return fmt.Errorf("sync the log: %w", err)
	}
	return nil
}
