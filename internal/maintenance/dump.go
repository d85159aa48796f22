package maintenance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/annexapi/annex/store"
)

// Line is one object in a dump.
type Line struct {
	// Storage is left out if there is only one.
	Storage  string     `json:"storage,omitempty"`
	Key      string     `json:"key"`
	Revision uint64     `json:"revision"`
	Expires  *time.Time `json:"expires,omitempty"`
	// Value is what is stored if that is JSON, Base64 what is stored otherwise.
	Value  json.RawMessage `json:"value,omitempty"`
	Base64 []byte          `json:"base64,omitempty"`
}

func newLine(v store.Value) Line {
	line := Line{Key: v.Key, Revision: v.Revision}
	if !v.Expires.IsZero() {
		line.Expires = &v.Expires
	}
	if json.Valid(v.Data) {
		line.Value = v.Data
	} else {
		line.Base64 = v.Data
	}
	return line
}

// Dump writes the objects of a backup whose keys begin with a prefix to out, as
// JSON, one in a line, and returns how many these are. What has been written
// stands only if there was no error.
func Dump(backup io.Reader, out io.Writer, prefix string) (objects int, err error) {
	r, err := NewReader(backup)
	if err != nil {
		return 0, err
	}
	buffered := bufio.NewWriterSize(out, 1<<16)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	for {
		storage, v, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return objects, err
		}
		if !strings.HasPrefix(v.Key, prefix) {
			continue
		}
		line := newLine(v)
		if len(r.Header.Storages) > 1 {
			line.Storage = r.Header.Storages[storage].Name
		}
		if err := encoder.Encode(line); err != nil {
			return objects, fmt.Errorf("dump: %w", err)
		}
		objects++
	}
	if err := buffered.Flush(); err != nil {
		return objects, fmt.Errorf("dump: %w", err)
	}
	return objects, nil
}
