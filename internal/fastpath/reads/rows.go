package reads

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/wire/plainjson"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// rowsAs returns a verbatim.Row for lists that are converted to another kind, as JSON: rows of a table, or metadata
// alone. It returns nil if upstream has to answer the request.
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
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(
		r.URL.Query(),
		metav1.SchemeGroupVersion,
		&options,
	); err != nil || len(validation.ValidateTableOptions(&options)) > 0 ||
		options.IncludeObject == metav1.IncludeObject {
		return nil
	}
	return tableRows{r.Context(), table, partial, options.IncludeObject == metav1.IncludeNone}.append
}

// messagesAs is rowsAs for protobuf, which has no tables.
func messagesAs(wanted *schema.GroupVersionKind, in format) verbatim.Row {
	version, tag := metav1.SchemeGroupVersion, partialMessages(itemsTag)
	if in == asBetaProtobuf {
		version, tag = metav1beta1.SchemeGroupVersion, betaItemsTag
	}
	if *wanted != version.WithKind("PartialObjectMetadataList") {
		return nil
	}
	return tag.append
}

// partialMessages is the protobuf tag of a PartialObjectMetadata in a list.
type partialMessages byte

// append is a verbatim.Row.
func (p partialMessages) append(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
	read, err := object()
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(read)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(accessor)
	size := partial.Size()
	to = binary.AppendUvarint(append(to, byte(p)), uint64(size))
	begin := len(to)
	to = slices.Grow(to, size)[:begin+size]
	_, err = partial.MarshalTo(to[begin:])
	return to, err
}

// withoutMetadata returns a row that ignores the stored metadata, which differs from the metadata of the converted object.
func withoutMetadata(row verbatim.Row) verbatim.Row {
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
		return row(to, object, verbatim.Fragment{})
	}
}

// partialObjects is the version of meta.k8s.io whose PartialObjectMetadata are encoded.
type partialObjects schema.GroupVersion

// append is a verbatim.Row.
func (p partialObjects) append(to []byte, object func() (runtime.Object, error), metadata verbatim.Fragment) ([]byte, error) {
	if metadata.IsZero() {
		read, err := object()
		if err != nil {
			return nil, err
		}
		return p.appendMetadata(to, read)
	}
	to = append(to, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	to = append(append(append(to, p.Group...), '/'), p.Version...)
	to = append(to, `","metadata":`...)
	return append(metadata.Append(to), '}'), nil
}

func (p partialObjects) appendMetadata(to []byte, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(accessor)
	partial.SetGroupVersionKind(schema.GroupVersion(p).WithKind("PartialObjectMetadata"))
	encoded, err := json.Marshal(partial)
	return append(to, encoded...), err
}

// tableRows encodes the rows of the table that a request asks for.
type tableRows struct {
	ctx     context.Context
	table   rest.TableConvertor
	partial partialObjects
	bare    bool // without objects
}

var errNoRow = errors.New("an object is not a row of its table")

// withoutHeaders are the table options for every row: the headers of the table are written already.
var withoutHeaders = &metav1.TableOptions{NoHeaders: true}

// append is a verbatim.Row.
func (t tableRows) append(to []byte, object func() (runtime.Object, error), metadata verbatim.Fragment) ([]byte, error) {
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
		to, err = t.partial.appendMetadata(to, row.Object.Object)
	}
	return append(to, '}'), err
}

// appendCells appends cells exactly as json.Marshal encodes them.
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
