package requestlog

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MaxRefusal is how many bytes of a refusal Refusal needs to see. A longer one has no reason but that of its code.
const MaxRefusal = 4 << 10

// maxCauses bounds the causes of an entry.
const maxCauses = 8

// Refusal returns the reason of a refusal, and its causes as lines of a reason and a field. body is the beginning of the
// response's body, a Status as JSON or protobuf. Messages are left out, because they may quote objects.
func Refusal(code int, body []byte) (reason, causes string) {
	status, ok := statusOf(body)
	if !ok || status.Reason == "" {
		return strings.ReplaceAll(http.StatusText(code), " ", ""), ""
	}
	reason = word(string(status.Reason))
	if status.Details == nil {
		return reason, ""
	}
	var lines []string
	for _, cause := range status.Details.Causes[:min(len(status.Details.Causes), maxCauses)] {
		line := word(string(cause.Type))
		if field := word(cause.Field); field != "" {
			line += " " + field
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return reason, strings.Join(lines, "\n")
}

func statusOf(body []byte) (*metav1.Status, bool) {
	status := &metav1.Status{}
	if raw, ok := bytes.CutPrefix(body, []byte("k8s\x00")); ok {
		var unknown runtime.Unknown
		if unknown.Unmarshal(raw) != nil || unknown.Kind != "Status" || status.Unmarshal(unknown.Raw) != nil {
			return nil, false
		}
		return status, true
	}
	if json.Unmarshal(body, status) != nil || status.Kind != "Status" {
		return nil, false
	}
	return status, true
}

// word returns the beginning of a text without spaces and control characters, which reasons and fields do not have.
func word(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
	if end >= 0 {
		text = text[:end]
	}
	return text[:min(len(text), 128)]
}
