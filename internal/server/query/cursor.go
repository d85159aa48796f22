package query

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/annexapi/annex/internal/base/ordered"
)

const (
	// cursorForm is the first byte of a cursor.
	cursorForm   = 1
	cursorSum    = 12
	longestInput = 4096
)

var errCursor = errors.New("cursor: not a cursor of the same query; the resource, the filters and the sort order must be the same as for " +
	"the previous page")

// writeCursor returns a cursor for the position behind which the next page of a query begins.
func writeCursor(p ordered.Position, binding string) string {
	body := []byte{cursorForm}
	for _, part := range []string{string(p.Value), p.Namespace, p.Name} {
		body = binary.AppendUvarint(body, uint64(len(part)))
		body = append(body, part...)
	}
	return base64.RawURLEncoding.EncodeToString(append(body, checksum(body, binding)...))
}

func checksum(body []byte, binding string) []byte {
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(body))))
	sum.Write(body)
	sum.Write([]byte(binding))
	return sum.Sum(nil)[:cursorSum]
}

// readCursor returns the position in a cursor. It reports an error unless the cursor was made for the query of
// binding.
func readCursor(text, binding string) (*ordered.Position, error) {
	if len(text) > longestInput {
		return nil, errCursor
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(body) < 1+cursorSum || body[0] != cursorForm {
		return nil, errCursor
	}
	body, sum := body[:len(body)-cursorSum], body[len(body)-cursorSum:]
	if string(checksum(body, binding)) != string(sum) {
		return nil, errCursor
	}
	var parts [3]string
	rest := body[1:]
	for i := range parts {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return nil, errCursor
		}
		parts[i], rest = string(rest[n:n+int(size)]), rest[n+int(size):]
	}
	if len(rest) > 0 {
		return nil, errCursor
	}
	return &ordered.Position{Value: ordered.Value(parts[0]), Namespace: parts[1], Name: parts[2]}, nil
}
