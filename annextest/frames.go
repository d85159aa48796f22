package annextest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// splitter cuts the bytes of a watch into its frames: lines of JSON, or protobuf behind its length in four bytes.
type splitter struct {
	protobuf bool
	rest     []byte
}

// newSplitter returns a splitter for a media type of a watch, and whether there is one.
func newSplitter(contentType string) (*splitter, bool) {
	switch media, _, _ := strings.Cut(contentType, ";"); media {
	case protobufType:
		return &splitter{protobuf: true}, true
	case "application/json":
		return &splitter{}, true
	}
	return nil, false
}

// push returns the frames that the bytes complete. Each frame is a copy, with its end of line or its length.
func (s *splitter) push(data []byte) [][]byte {
	s.rest = append(s.rest, data...)
	var frames [][]byte
	for {
		n := s.length()
		if n == 0 || n > len(s.rest) {
			return frames
		}
		frames = append(frames, bytes.Clone(s.rest[:n]))
		s.rest = s.rest[n:]
	}
}

// length returns the length of the first frame of the rest; 0 if it is not known yet.
func (s *splitter) length() int {
	if !s.protobuf {
		return bytes.IndexByte(s.rest, '\n') + 1
	}
	if len(s.rest) < 4 {
		return 0
	}
	return 4 + int(binary.BigEndian.Uint32(s.rest))
}

// event returns the type of the event in a frame, and its object as the client gets it.
func (s *splitter) event(frame []byte) (watch.EventType, []byte, error) {
	if !s.protobuf {
		var e struct {
			Type   watch.EventType
			Object json.RawMessage
		}
		if err := json.Unmarshal(frame, &e); err != nil {
			return "", nil, fmt.Errorf("read an event: %w", err)
		}
		return e.Type, e.Object, nil
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame[4:]); err != nil {
		return "", nil, fmt.Errorf("read an event: %w", err)
	}
	return watch.EventType(e.Type), e.Object.Raw, nil
}

// failure returns the frame of an event with an error.
func (s *splitter) failure(status *metav1.Status) ([]byte, error) {
	media := "application/json"
	if s.protobuf {
		media = protobufType
	}
	_, object, err := encode(media, status)
	if err != nil {
		return nil, fmt.Errorf("write an event: %w", err)
	}
	e := metav1.WatchEvent{Type: string(watch.Error), Object: runtime.RawExtension{Raw: object}}
	if !s.protobuf {
		frame, err := json.Marshal(e)
		return append(frame, '\n'), err
	}
	frame, err := e.Marshal()
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...), err
}
