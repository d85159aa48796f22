package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func openFiles(t testing.TB, dir string, o LogFilesOptions) *LogFiles {
	t.Helper()
	l, err := OpenLogFiles(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func begin(t testing.TB, l *LogFiles) io.WriteCloser {
	t.Helper()
	w, err := l.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func put(t testing.TB, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Fatal(n, err)
	}
}

// read returns the text that the options select.
func read(t testing.TB, l *LogFiles, o LogOptions) string {
	t.Helper()
	r, err := l.Open(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func ptr[T any](v T) *T { return &v }

func numbered(from, to int) string {
	var all strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	return all.String()
}

func TestLogFiles_timestamps(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{MaxLineBytes: 10})
	w := begin(t, l)
	put(t, w, "one\ntw")
	put(t, w, "o\n\n0123456789\n0123456789abc\nhalf")
	if got := read(t, l, LogOptions{}); got != "one\ntwo\n\n0123456789\n0123456789\nabc\n" {
		t.Errorf("%q", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, l, LogOptions{TailLines: ptr(int64(2))}); got != "abc\nhalf\n" {
		t.Errorf("closed: %q", got)
	}
	stamped := regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z [^\n]*\n){7}$`)
	if got := read(t, l, LogOptions{Timestamps: true}); !stamped.MatchString(got) {
		t.Errorf("%q", got)
	}
	if _, err := w.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

func TestLogFiles_tailLines(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{MaxFileBytes: 1000, MaxFiles: 1000})
	w := begin(t, l)
	const all = 500
	for i := 1; i <= all; i++ {
		put(t, w, numbered(i, i))
	}
	if files := len(l.runs[0].files); files < 10 {
		t.Fatalf("there are %d files", files)
	}
	for n := range int64(all + 10) {
		from := max(all-int(n)+1, 1)
		if got := read(t, l, LogOptions{TailLines: &n}); got != numbered(from, all) {
			t.Fatalf("tail of %d: %q", n, got)
		}
	}
}

func TestLogFiles_sinceTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := openFiles(t, t.TempDir(), LogFilesOptions{MaxFileBytes: 500, MaxFiles: 1000})
		w := begin(t, l)
		begun := time.Now()
		const all = 200
		for i := 1; i <= all; i++ {
			put(t, w, numbered(i, i))
			time.Sleep(time.Second)
		}
		for i := range all + 3 {
			since := metav1.NewTime(begun.Add(time.Duration(i)*time.Second - time.Millisecond))
			if got := read(t, l, LogOptions{SinceTime: &since}); got != numbered(i+1, all) {
				t.Fatalf("since %d: %q", i, got)
			}
		}
		for seconds := int64(1); seconds < all+3; seconds++ {
			if got := read(t, l, LogOptions{SinceSeconds: &seconds}); got != numbered(max(1, all-int(seconds)+1), all) {
				t.Fatalf("in %d seconds: %q", seconds, got)
			}
		}
		since := metav1.NewTime(begun.Add(50*time.Second - time.Millisecond))
		if got := read(t, l, LogOptions{SinceTime: &since, TailLines: ptr(int64(10))}); got != numbered(191, 200) {
			t.Errorf("the tail is shorter: %q", got)
		}
		if got := read(t, l, LogOptions{SinceTime: &since, TailLines: ptr(int64(180))}); got != numbered(51, 200) {
			t.Errorf("the tail is longer: %q", got)
		}
	})
}

func TestLogFiles_clockSetBack_keepsOrder(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{})
	w := begin(t, l).(*logWriter)
	put(t, w, "before\n")
	w.last = w.last.Add(time.Hour)
	put(t, w, "then\nafter\n")
	since := metav1.NewTime(time.Now().Add(time.Minute))
	if got := read(t, l, LogOptions{SinceTime: &since}); got != "then\nafter\n" {
		t.Errorf("%q", got)
	}
}

func TestLogFiles_previousRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := openFiles(t, dir, LogFilesOptions{})
	for _, previous := range []bool{false, true} {
		if _, err := l.Open(&LogOptions{Previous: previous}); err == nil {
			t.Errorf("previous %v: there is a log before anything was logged", previous)
		}
	}
	first := begin(t, l)
	put(t, first, "first\n")
	if _, err := l.Open(
		&LogOptions{Previous: true},
	); err == nil ||
		!strings.Contains(err.Error(), "no log of a previous run") {
		t.Errorf("previous of the first: %v", err)
	}
	put(t, begin(t, l), "second\n")
	if _, err := first.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a run that was followed by another: %v", err)
	}
	check := func(l *LogFiles, current, previous string) {
		t.Helper()
		if c, p := read(t, l, LogOptions{}), read(t, l, LogOptions{Previous: true}); c != current || p != previous {
			t.Errorf("%q and %q, want %q and %q", c, p, current, previous)
		}
	}
	check(l, "second\n", "first\n")
	check(openFiles(t, dir, LogFilesOptions{}), "second\n", "first\n")
	l = openFiles(t, dir, LogFilesOptions{})
	begin(t, l)
	check(l, "", "second\n")
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("files left: %v", files)
	}
}

func TestLogFiles_maxFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes.log"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openFiles(t, dir, LogFilesOptions{MaxFileBytes: 1000, MaxFiles: 3})
	w := begin(t, l)
	put(t, w, numbered(1, 10_000))
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Size() > 1100 {
			t.Errorf("%s: %d bytes, %v", f.Name(), info.Size(), err)
		}
	}
	if got := read(t, l, LogOptions{}); !strings.HasSuffix(numbered(1, 10_000), got) || len(got) < 300 {
		t.Errorf("%q", got)
	}
	if _, err := OpenLogFiles(dir, LogFilesOptions{MaxFiles: -1}); err == nil {
		t.Error("a negative number of files is accepted")
	}
}

func TestLogFiles_partialLineOfCrash_isRemoved(t *testing.T) {
	t.Parallel()
	const whole = "2026-11-23T10:00:00.000000000Z whole\n"
	for name, text := range map[string]string{
		"half a line":  whole + "2026-11-23T10:00:00.000000000Z ha",
		"half a time":  whole + "2026-11-2",
		"zeros":        whole + string(make([]byte, 100_000)),
		"nothing else": whole,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, partName(1, 1)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := openFiles(t, dir, LogFilesOptions{})
		if got := read(t, l, LogOptions{}); got != "whole\n" {
			t.Errorf("%s: %q", name, got)
		}
		put(t, begin(t, l), "new\n")
		if got := read(t, l, LogOptions{}) + read(t, l, LogOptions{Previous: true}); got != "new\nwhole\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, partName(1, 1)), []byte("2026-1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(t, openFiles(t, dir, LogFilesOptions{}), LogOptions{}); got != "" {
		t.Errorf("half a line alone: %q", got)
	}
}

func TestLogFiles_follow(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{MaxFileBytes: 4000, MaxFiles: 10_000})
	w := begin(t, l)
	put(t, w, numbered(1, 10))
	r, err := l.Open(&LogOptions{Follow: true, TailLines: ptr(int64(5))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		for i := 11; i <= 5000; i++ {
			_, _ = io.WriteString(w, numbered(i, i)) // the reader reports missing lines
		}
		_ = w.Close()
	}()
	got, err := io.ReadAll(&waiting{ctx: t.Context(), from: r, waiter: r.(Waiter), idle: func() {}, limit: -1})
	if err != nil || string(got) != numbered(6, 5000) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestLogFiles_followContextDone(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{})
	begin(t, l)
	r, err := l.Open(&LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.(Waiter).Wait(ctx) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLogFiles_slowReader_getsError(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{MaxFileBytes: 1000, MaxFiles: 2})
	w := begin(t, l)
	put(t, w, numbered(1, 5))
	for _, follow := range []bool{false, true} {
		r, err := l.Open(&LogOptions{Follow: follow})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		before, err := r.Read(make([]byte, 4000))
		if err != nil || before == 0 {
			t.Fatal(before, err)
		}
		put(t, w, numbered(6, 2000))
		text, err := io.ReadAll(r)
		if follow && !errors.Is(err, errRemoved) || !follow && err != nil {
			t.Errorf("follow %v: %v", follow, err)
		}
		if follow && strings.Contains(string(text), "line 2000") {
			t.Errorf("lines are missing before %q", text)
		}
	}
}

func TestLogFiles_failedWrite_leavesNoPartialLine(t *testing.T) {
	t.Parallel()
	l := openFiles(t, t.TempDir(), LogFilesOptions{})
	w := begin(t, l).(*logWriter)
	put(t, w, "one\n")
	file := w.file
	readOnly, err := os.Open(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	w.file = readOnly
	if _, err := w.Write([]byte("lost\n")); err == nil {
		t.Error("a write to a file that cannot be written succeeds")
	}
	w.file = file
	put(t, w, "two\n")
	if got := read(t, l, LogOptions{}); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
}
