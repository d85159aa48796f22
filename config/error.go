package config

// Error is a mistake in what a server was to be: its definition, its options, or a file that
// they name; not a failure in doing it. It is one line unless it lists several mistakes.
type Error struct {
	err error
}

// Mistake returns err as an Error; nil if it is nil.
func Mistake(err error) error {
	if err == nil {
		return nil
	}
	return &Error{err}
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }
