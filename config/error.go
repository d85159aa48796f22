package config

// Error is a mistake in the configuration of a server: in its definition, its options, or a file that these name. It
// is not a failure while the server starts or runs. Its text is one line unless it lists several mistakes.
type Error struct {
	err error
}

// Mistake returns err as an Error, and nil if err is nil.
func Mistake(err error) error {
	if err == nil {
		return nil
	}
	return &Error{err}
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }
