package ordered

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Search are conditions that the digest of an object answers.
type Search struct {
	// Digest is the field of the digests, by NewDigest.
	Digest Field
	// Words are in lower case, and each must be in the text of an object.
	Words []string
	// Labels selects objects by their labels; nil selects all.
	Labels labels.Selector
}

// Empty reports whether the conditions hold for every object.
func (s *Search) Empty() bool { return len(s.Words) == 0 && (s.Labels == nil || s.Labels.Empty()) }

// longestDigest bounds the digests that orders keep. Longer texts are searched in the objects.
const longestDigest = 2048

const (
	// noDigest is the digest of an object whose text is too long.
	noDigest = "\xff"
	// afterLabels separates the labels of a digest from the text, afterLabel one label from the next.
	afterLabels, afterLabel = "\x00", "\n"
)

// NewDigest returns the field of digests: the labels of objects, and a text about each. The text is searched for words
// without regard to upper and lower case. It may panic for an object, which then has no text.
func NewDigest(order string, text func(runtime.Object) string) Field {
	of := func(o runtime.Object) string {
		marks := strings.Join(LabelsOf(o), afterLabel)
		return marks + afterLabels + strings.ToLower(marks) + afterLabel + strings.ToLower(safely(text, o))
	}
	return Field{
		Name:  order,
		Order: order,
		Type:  String,
		Get:   func(o runtime.Object) any { return of(o) },
		Digest: func(o runtime.Object) string {
			digest := of(o)
			if len(digest) > longestDigest {
				return noDigest
			}
			return digest
		},
	}
}

func safely(text func(runtime.Object) string, o runtime.Object) (s string) {
	defer func() {
		if recover() != nil {
			s = ""
		}
	}()
	return text(o)
}

// LabelsOf returns the labels of an object as sorted texts such as team=red.
func LabelsOf(o runtime.Object) []string {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil
	}
	all := make([]string, 0, len(m.GetLabels()))
	for name, value := range m.GetLabels() {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return all
}

// Selects reports whether the conditions hold for an object.
func (s *Search) Selects(o runtime.Object) bool {
	digest, ok := s.Digest.Get(o).(string)
	return ok && s.holds(digest)
}

// Matches reports whether the conditions hold for an object with a digest from an order. It returns known as false if
// that digest does not suffice, so that the object has to be read.
func (s *Search) Matches(digest string) (selected, known bool) {
	if digest == noDigest {
		return true, false
	}
	return s.holds(digest), true
}

// LabelsOfDigest returns what LabelsOf returns of the object of a digest, for which Matches is known.
func LabelsOfDigest(digest string) []string {
	marks, _, _ := strings.Cut(digest, afterLabels)
	if marks == "" {
		return nil
	}
	return strings.Split(marks, afterLabel)
}

// LabelsField returns the field of the labels of objects, which are counted.
func LabelsField() Field { return Field{Name: "labels", Type: String, Each: LabelsOf} }

// CountsLabels reports whether the query only counts labels, of objects that its Search selects.
func (q *Query) CountsLabels() bool {
	return q.Limit <= 0 && len(q.Counted) == 1 && q.Counted[0].Name == "labels" && q.Counted[0].Each != nil && len(q.Where) == 0 &&
		q.Matches == nil && q.Search.Digest.Digest != nil
}

func (s *Search) holds(digest string) bool {
	marks, text, _ := strings.Cut(digest, afterLabels)
	for _, word := range s.Words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return s.Labels == nil || s.Labels.Empty() || s.Labels.Matches(digestLabels(marks))
}

// digestLabels are the labels of a digest.
type digestLabels string

// Has implements labels.Labels.
func (l digestLabels) Has(name string) bool {
	_, exists := l.Lookup(name)
	return exists
}

// Get implements labels.Labels.
func (l digestLabels) Get(name string) string {
	value, _ := l.Lookup(name)
	return value
}

// Lookup implements labels.Labels.
func (l digestLabels) Lookup(name string) (value string, exists bool) {
	for one := range strings.SplitSeq(string(l), afterLabel) {
		if rest, begins := strings.CutPrefix(one, name); begins && strings.HasPrefix(rest, "=") {
			return rest[1:], true
		}
	}
	return "", false
}
