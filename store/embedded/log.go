package embedded

import (
	"fmt"
	"log/slog"
	"strings"
)

// databaseLogger is Pebble's logger. It passes an error that Pebble considers fatal to fail, and returns: Pebble then
// continues, or returns an error of its own.
type databaseLogger struct {
	logger *slog.Logger
	fail   func(error)
}

func (l databaseLogger) Infof(format string, args ...any) {
	l.logger.Debug("journal: " + fmt.Sprintf(format, args...))
}

func (l databaseLogger) Errorf(format string, args ...any) {
	l.logger.Error("journal: " + fmt.Sprintf(format, args...))
}

func (l databaseLogger) Fatalf(format string, args ...any) {
	l.fail(oneLine{fmt.Errorf(format, args...)})
}

// nopCloser closes nothing.
type nopCloser struct{}

func (nopCloser) Close() error { return nil }

// oneLine is an error of Pebble without the details on its further lines.
type oneLine struct{ error }

func (e oneLine) Error() string {
	line, _, _ := strings.Cut(e.error.Error(), "\n")
	return line
}

func (e oneLine) Unwrap() error { return e.error }
