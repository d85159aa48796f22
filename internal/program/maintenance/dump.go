package maintenance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// Line is one object in a dump.
type Line struct {
	// Storage is empty if the backup has only one storage.
	Storage  string     `json:"storage,omitempty"`
	Key      string     `json:"key"`
	Revision uint64     `json:"revision"`
	Expires  *time.Time `json:"expires,omitempty"`
	// MediaType is the stored media type, if the value is an object that is not stored as JSON.
	MediaType string `json:"mediaType,omitempty"`
	// Value is the stored object as JSON; Base64 is a stored value that is no object.
	Value  json.RawMessage `json:"value,omitempty"`
	Base64 []byte          `json:"base64,omitempty"`
}

// JSON converts the output of a storage codec to JSON.
type JSON func(data []byte) ([]byte, error)

func newLine(v store.Value, toJSON JSON) Line {
	line := Line{Key: v.Key, Revision: v.Revision}
	if !v.Expires.IsZero() {
		line.Expires = &v.Expires
	}
	if json.Valid(v.Data) {
		line.Value = v.Data
		return line
	}
	line.Base64 = v.Data
	if form, ok := convert.FormOf(v.Data); ok {
		if text, err := toJSON(v.Data); err == nil && json.Valid(text) {
			line.MediaType, line.Value, line.Base64 = form.MediaType, text, nil
		}
	}
	return line
}

// Dump writes the objects of a backup whose keys begin with a prefix to out, as one JSON document a line, and
// returns their number. The output is verified only if Dump returns no error.
func Dump(backup io.Reader, out io.Writer, prefix string, toJSON JSON) (objects int, err error) {
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
		line := newLine(v, toJSON)
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

// DumpTo dumps the storages of the tools, as Dump does. When it returns, even early, the tools are no longer in
// use.
func DumpTo(ctx context.Context, tools Tools, out io.Writer, prefix string, toJSON JSON) (objects int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	read, write := io.Pipe()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	defer func() { _ = read.Close() }()                                       // never fails
	reading.Go(func() { _ = write.CloseWithError(tools.Backup(ctx, write)) }) // never fails
	return Dump(read, out, prefix, toJSON)
}

// RecordLine is one journal record in a dump of records.
type RecordLine struct {
	Storage  string `json:"storage,omitempty"`
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	// Previous is the revision that this record replaced or deleted.
	Previous  uint64          `json:"previous,omitempty"`
	Deleted   bool            `json:"deleted,omitempty"`
	Committed time.Time       `json:"committed"`
	Expires   *time.Time      `json:"expires,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	Value     json.RawMessage `json:"value,omitempty"`
	Base64    []byte          `json:"base64,omitempty"`
}

// DumpRecords writes all records of the storages whose keys begin with a prefix to out, as one JSON document a
// line. It continues after unreadable records, and returns them as an error at the end.
func DumpRecords(ctx context.Context, local *Local, out io.Writer, prefix string) error {
	buffered := bufio.NewWriterSize(out, 1<<16)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	var errs []error
	for _, s := range local.Storages {
		if s.Records == nil {
			return fmt.Errorf("storage %s: %w", s.Name, ErrNoRecords)
		}
		_, err := s.Records(ctx, func(r journal.Record) error {
			if !strings.HasPrefix(r.Key, prefix) {
				return nil
			}
			shown := newLine(store.Value{Key: r.Key, Revision: r.Revision, Expires: r.Expires, Data: r.Value}, local.JSON)
			line := RecordLine{
				Key: r.Key, Revision: r.Revision, Previous: r.Previous, Deleted: r.Deleted, Committed: r.Committed,
				Expires: shown.Expires, MediaType: shown.MediaType, Value: shown.Value, Base64: shown.Base64,
			}
			if len(local.Storages) > 1 {
				line.Storage = s.Name
			}
			return encoder.Encode(line)
		}, func(d *journal.Damage) { errs = append(errs, fmt.Errorf("storage %s: %w", s.Name, d)) })
		if err != nil {
			errs = append(errs, fmt.Errorf("storage %s: %w", s.Name, err))
		}
	}
	return errors.Join(append(errs, buffered.Flush())...)
}

// ErrNoRecords marks a storage that does not expose its journal records.
var ErrNoRecords = errors.New("the storage does not expose its history")
