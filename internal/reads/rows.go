package reads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/plainjson"
	"github.com/annexapi/annex/internal/verbatim"
)

// rowsAs returns what makes objects the items of a list that a client wants in another form than theirs: rows of a table,
// or metadata alone. It is nil if upstream has to find out.
func rowsAs(r *http.Request, wanted *schema.GroupVersionKind, table rest.TableConvertor) verbatim.Row {
	if wanted.GroupVersion() != metav1.SchemeGroupVersion && wanted.GroupVersion() != metav1beta1.SchemeGroupVersion {
		return nil
	}
	partial := partialObjects(wanted.GroupVersion())
	switch {
	case wanted.Kind == "PartialObjectMetadataList":
		return partial.append
	case wanted.Kind != "Table" || table == nil:
		return nil
	}
	var options metav1.TableOptions
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &options); err != nil || len(validation.ValidateTableOptions(&options)) > 0 || options.IncludeObject == metav1.IncludeObject {
		return nil
	}
	return tableRows{r.Context(), table, partial, options.IncludeObject == metav1.IncludeNone}.append
}

// ofObjects has rows made of objects alone: the metadata that is stored is not theirs.
func ofObjects(row verbatim.Row) verbatim.Row {
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Piece) ([]byte, error) {
		return row(to, object, verbatim.Piece{})
	}
}

// partialObjects are the PartialObjectMetadata of a version of their group.
type partialObjects schema.GroupVersion

// append is a verbatim.Row.
func (p partialObjects) append(to []byte, object func() (runtime.Object, error), metadata verbatim.Piece) ([]byte, error) {
	if metadata.IsZero() {
		read, err := object()
		if err != nil {
			return nil, err
		}
		return p.appendOf(to, read)
	}
	to = append(to, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	to = append(append(append(to, p.Group...), '/'), p.Version...)
	to = append(to, `","metadata":`...)
	return append(metadata.Append(to), '}'), nil
}

func (p partialObjects) appendOf(to []byte, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(accessor)
	partial.SetGroupVersionKind(schema.GroupVersion(p).WithKind("PartialObjectMetadata"))
	encoded, err := json.Marshal(partial)
	return append(to, encoded...), err
}

// tableRows are the rows of the table that a request wants.
type tableRows struct {
	ctx     context.Context
	table   rest.TableConvertor
	partial partialObjects
	bare    bool // without objects
}

var errNoRow = errors.New("an object is not a row of its table")

// withoutHeaders are the options by which an object is converted to a row of a table that has begun.
var withoutHeaders = &metav1.TableOptions{NoHeaders: true}

// append is a verbatim.Row.
func (t tableRows) append(to []byte, object func() (runtime.Object, error), metadata verbatim.Piece) ([]byte, error) {
	read, err := object()
	if err != nil {
		return nil, err
	}
	given := convert.Shallow(read)
	table, err := t.table.ConvertToTable(t.ctx, given, withoutHeaders)
	switch {
	case err != nil:
		return nil, err
	case len(table.Rows) != 1:
		return nil, errNoRow
	}
	row := &table.Rows[0]
	if to, err = appendCells(append(to, `{"cells":`...), row.Cells); err != nil {
		return nil, err
	}
	if len(row.Conditions) > 0 {
		conditions, err := json.Marshal(row.Conditions)
		if err != nil {
			return nil, err
		}
		to = append(append(to, `,"conditions":`...), conditions...)
	}
	to = append(to, `,"object":`...)
	bare := t.bare
	if bare {
		marked, err := storage.HasInitialEventsEndBookmarkAnnotation(row.Object.Object)
		if err != nil {
			return nil, fmt.Errorf("unable to determine if the obj has the required annotation, err: %w", err)
		}
		bare = !marked
	}
	switch {
	case bare:
		to = append(to, "null"...)
	case row.Object.Object == given:
		to, err = t.partial.append(to, object, metadata)
	default:
		to, err = t.partial.appendOf(to, row.Object.Object)
	}
	return append(to, '}'), err
}

// appendCells appends what json.Marshal makes of cells.
func appendCells(to []byte, cells []any) ([]byte, error) {
	if cells == nil {
		return append(to, "null"...), nil
	}
	to = append(to, '[')
	for i, cell := range cells {
		if i > 0 {
			to = append(to, ',')
		}
		switch c := cell.(type) {
		case nil:
			to = append(to, "null"...)
		case bool:
			to = strconv.AppendBool(to, c)
		case int64:
			to = strconv.AppendInt(to, c, 10)
		case string:
			var err error
			if to, err = plainjson.AppendString(to, c); err != nil {
				return nil, err
			}
		default:
			encoded, err := json.Marshal(c)
			if err != nil {
				return nil, err
			}
			to = append(to, encoded...)
		}
	}
	return append(to, ']'), nil
}

// placesOf returns where the items of a list without any belong: no string in JSON has such a piece.
func placesOf(pretty bool) []string {
	if pretty {
		return []string{"\n  \"items\": [", "\n  \"items\": null", "\n  \"rows\": ["}
	}
	return []string{`"items":[`, `"items":null`, `"rows":[`}
}

// cutEmpty returns what comes before and after the items of an encoded list that has none.
func cutEmpty(list []byte, pretty bool) (head, tail []byte, ok bool) {
	for _, place := range placesOf(pretty) {
		before, after, found := bytes.Cut(list, []byte(place))
		if !found {
			continue
		}
		begin, empty := strings.CutSuffix(place, "null")
		if empty {
			begin += "["
		} else if after, found = bytes.CutPrefix(after, []byte("]")); !found {
			return nil, nil, false
		}
		end := "]"
		if pretty {
			end = "\n  ]"
		}
		return append(bytes.Clone(before), begin...), append([]byte(end), after...), true
	}
	return nil, nil, false
}

// indented are items that people read, as they are in a list.
type indented struct {
	verbatim.Items
	plain []byte
}

// itemIndent is how far an item is indented, and indent how far what it has is, from there.
const itemIndent, indent = "    ", "  "

// Size implements verbatim.Items.
func (i *indented) Size(item int) int { return 2 * i.Items.Size(item) }

// Append implements verbatim.Items.
func (i *indented) Append(to []byte, item int) ([]byte, error) {
	plain, err := i.Items.Append(i.plain[:0], item)
	if err != nil {
		return nil, err
	}
	i.plain = plain
	buffer := bytes.NewBuffer(append(append(to, '\n'), itemIndent...))
	err = json.Indent(buffer, plain, itemIndent, indent)
	return buffer.Bytes(), err
}
