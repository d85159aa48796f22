package query

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/storage/past"
)

// mostCounts is the maximum number of values in a facet; the most frequent ones are returned.
const mostCounts = 1000

// page answers with a page.
func (a *API) page(w http.ResponseWriter, r *http.Request, asked *parsedRequest, next http.Handler) error {
	answer := NewRecorder()
	question := &past.Request{At: asked.at}
	if asked.at != nil {
		if AreSecrets(asked.resource) && !a.config.PastSecrets {
			return PastSecretsForbidden("")
		}
		r = r.WithContext(past.NewContext(r.Context(), question))
	}
	next.ServeHTTP(answer, listOf(r, asked, asked.selectors))
	if asked.at != nil {
		if err := Explain(question, asked.resource.GroupVersionResource.GroupResource()); err != nil {
			return err
		}
	}
	if answer.Code != http.StatusOK {
		return ErrorOf(answer.Code, answer.Body.Bytes())
	}
	encode := asked.resource.Encode
	if encode == nil {
		var err error
		if err = asked.answerFromList(answer.Body.Bytes()); err != nil {
			return err
		}
		encode = encodeUnstructured
	}
	if asked.request.Page == nil {
		return fmt.Errorf("the storage of %s does not support queries", asked.resource.Resource)
	}
	items, err := encode(asked.request.Page.Objects)
	if err != nil {
		return fmt.Errorf("encode %s: %w", asked.resource.Resource, err)
	}
	for i := range items {
		if items[i], err = asked.item(items[i]); err != nil {
			return err
		}
	}
	rows, err := asked.rows()
	if err != nil {
		return err
	}
	return a.writePage(w, r, asked, items, rows)
}

// rows returns the cells of the objects of the page; nil if they are not asked for.
func (a *parsedRequest) rows() ([][]any, error) {
	if !a.columns || a.table == nil {
		return nil, nil
	}
	rows, err := a.table.cells(a.request.Page.Objects)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i] == nil {
			rows[i] = []any{}
		}
	}
	return rows, nil
}

// AreSecrets reports whether a resource is that of Secrets.
func AreSecrets(r *Resource) bool { return r.Group == "" && r.Resource == "secrets" }

// PastSecretsForbidden returns the error for the history of Secrets in a server that does not show it.
func PastSecretsForbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, errors.New(
		"the server does not show the history of secrets, because old values may still be valid elsewhere: the operator permits it with the "+
			"option history-of-secrets"))
}

// Explain returns the error for the client of a question to the history; nil if it has been answered.
func Explain(question *past.Request, resource schema.GroupResource) error {
	var notKept *past.NotKeptError
	var future *past.FutureError
	switch err := question.Err; {
	case !question.Answered:
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
			Message: fmt.Sprintf("%s have no history: they are virtual, or their storage keeps none", resource),
		}}
	case errors.As(err, &notKept):
		return apierrors.NewResourceExpired(fmt.Sprintf("%s at %v", resource, notKept))
	case errors.As(err, &future):
		return apierrors.NewBadRequest(future.Error())
	default:
		return err
	}
}

// listOf returns the request for the list or watch of a query.
func listOf(r *http.Request, asked *parsedRequest, query url.Values) *http.Request {
	ctx := r.Context()
	if asked.resource.Encode != nil {
		ctx = ordered.NewContext(ctx, &asked.request)
	}
	info, _ := request.RequestInfoFrom(ctx)
	if info != nil {
		of := *info
		of.Path = asked.place.path()
		ctx = request.WithRequestInfo(ctx, &of)
	}
	list := r.Clone(ctx)
	list.URL = &url.URL{Path: asked.place.path(), RawQuery: query.Encode()}
	list.RequestURI = list.URL.RequestURI()
	list.Header = http.Header{"Accept": {runtime.ContentTypeJSON}, "User-Agent": {r.UserAgent()}}
	if asked.resource.Encode == nil && !asked.tail {
		// The table has the objects beside their rows.
		query = maps.Clone(query)
		if query == nil {
			query = url.Values{}
		}
		query.Set("includeObject", string(metav1.IncludeObject))
		list.URL.RawQuery = query.Encode()
		list.RequestURI = list.URL.RequestURI()
		list.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,"+runtime.ContentTypeJSON)
	}
	return list
}

// answerFromList computes the page from a list that was not served by a storage with queries.
func (a *parsedRequest) answerFromList(body []byte) error {
	answer := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &answer.Object); err != nil {
		return fmt.Errorf("read the list of a query: %w", err)
	}
	objects, err := a.objectsOf(answer)
	if err != nil {
		return err
	}
	q := &a.request.Query
	q.Search.Digest = a.resource.digest(a.table)
	if a.byColumn != "" {
		if q.By.Get = nil; a.table != nil {
			for _, c := range a.table.Columns {
				if c.Name == a.byColumn && c.By != nil {
					q.By.Type, q.By.Get = c.By.Type, c.By.Get
				}
			}
		}
		if q.By.Get == nil {
			return apierrors.NewBadRequest(fmt.Sprintf("sortBy: %s has no column %.100q that can be sorted", a.resource.Resource, a.byColumn))
		}
	}
	if a.request.Page, err = ordered.PageOf(objects, q); err != nil {
		return err
	}
	a.request.Page.Revision, _ = strconv.ParseUint(answer.GetResourceVersion(), 10, 64)
	return nil
}

// objectsOf returns the objects of a list or of a table, and keeps the rows of a table.
func (a *parsedRequest) objectsOf(answer *unstructured.Unstructured) ([]runtime.Object, error) {
	if answer.GetKind() != "Table" {
		list, err := answer.ToList()
		if err != nil {
			return nil, fmt.Errorf("read the list of a query: %w", err)
		}
		objects := make([]runtime.Object, len(list.Items))
		for i := range list.Items {
			objects[i] = &list.Items[i]
		}
		return objects, nil
	}
	var definitions struct {
		ColumnDefinitions []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
		map[string]any{"columnDefinitions": answer.Object["columnDefinitions"]}, &definitions); err != nil {
		return nil, fmt.Errorf("read the table of a query: %w", err)
	}
	rows, _ := answer.Object["rows"].([]any)
	objects, cells := make([]runtime.Object, 0, len(rows)), make(map[runtime.Object][]any, len(rows))
	for _, row := range rows {
		row, _ := row.(map[string]any)
		content, isObject := row["object"].(map[string]any)
		if !isObject {
			return nil, fmt.Errorf("a row of the table of %s has no object", a.resource.Resource)
		}
		object := &unstructured.Unstructured{Object: content}
		objects = append(objects, object)
		cells[object], _ = row["cells"].([]any)
	}
	a.table = answeredTable(definitions.ColumnDefinitions, cells)
	return objects, nil
}

func encodeUnstructured(objects []runtime.Object) ([][]byte, error) {
	items := make([][]byte, len(objects))
	for i, o := range objects {
		var err error
		if items[i], err = json.Marshal(o); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// facet is the number of objects with a value; a nil value stands for objects without one.
type facet struct {
	Value *string `json:"value"`
	Count int     `json:"count"`
}

func facetsOf(counts map[ordered.Value]int) []facet {
	values := slices.SortedFunc(maps.Keys(counts), func(a, b ordered.Value) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	all := []facet{}
	for _, v := range values[:min(len(values), mostCounts)] {
		f := facet{Count: counts[v]}
		if v != "" {
			f.Value = new(v.Text())
		}
		all = append(all, f)
	}
	return all
}

// writePage writes the response, or 304 if the client has this page already.
func (a *API) writePage(w http.ResponseWriter, r *http.Request, asked *parsedRequest, items [][]byte, rows [][]any) error {
	page := asked.request.Page
	rest := struct {
		TotalItems      int                `json:"totalItems"`
		ResourceVersion string             `json:"resourceVersion"`
		Cursor          string             `json:"cursor,omitempty"`
		Facets          map[string][]facet `json:"facets,omitempty"`
		Columns         []columnDoc        `json:"columns,omitempty"`
		Rows            [][]any            `json:"rows,omitempty"`
	}{TotalItems: page.Total, ResourceVersion: strconv.FormatUint(page.Revision, 10)}
	if asked.columns && asked.table != nil {
		rest.Columns, rest.Rows = asked.table.describe(), rows
	}
	if page.More {
		rest.Cursor = writeCursor(page.Last, asked.binding)
	}
	for i, name := range asked.facets {
		if rest.Facets == nil {
			rest.Facets = map[string][]facet{}
		}
		rest.Facets[name] = facetsOf(page.Counts[i])
	}
	tail, err := json.Marshal(rest)
	if err != nil {
		return err
	}
	tag := etagOf(items, tail, rest.ResourceVersion)
	w.Header().Set("ETag", tag)
	if isKnown(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	size := len(tail) + 16
	for _, item := range items {
		size += len(item) + 1
	}
	body, _ := a.bodies.Get().(*bytes.Buffer)
	if body == nil {
		body = &bytes.Buffer{}
	}
	body.Reset()
	body.Grow(size)
	body.WriteString(`{"items":[`)
	for i, item := range items {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(item)
	}
	body.WriteString("],")
	body.Write(tail[1:])
	body.WriteByte('\n')
	WriteJSON(w, http.StatusOK, body.Bytes())
	if body.Cap() <= largestKept {
		a.bodies.Put(body)
	}
	return nil
}

// etagOf returns the entity tag of a page. It is weak, because it ignores the resource version, which changes with every
// write to the storage: a page whose objects are the same is the same page.
func etagOf(items [][]byte, tail []byte, version string) string {
	sum := sha256.New()
	for _, item := range items {
		sum.Write(item)
		sum.Write([]byte{0}) // no item has it
	}
	before, after, _ := bytes.Cut(tail, []byte(`"resourceVersion":"`+version+`"`))
	sum.Write(before)
	sum.Write(after)
	return `W/"` + base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:18]) + `"`
}

// isKnown reports whether an entity tag is among those of If-None-Match, compared weakly.
func isKnown(headers []string, tag string) bool {
	for _, header := range headers {
		for known := range strings.SplitSeq(header, ",") {
			known = strings.TrimSpace(known)
			if known == "*" || strings.TrimPrefix(known, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// largestKept is the size up to which buffers are reused, in bytes.
const largestKept = 1 << 20

// WriteJSON writes a response in JSON.
func WriteJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may have disconnected
}

// WriteError writes an error as a Status.
func WriteError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if seconds := status.Details; seconds != nil && seconds.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds.RetryAfterSeconds)))
	}
	body, err := json.Marshal(status)
	if err != nil {
		body = []byte("{}")
	}
	WriteJSON(w, int(status.Code), append(body, '\n'))
}

func statusOf(err error) *metav1.Status {
	found, ok := apierr.Status(err)
	if !ok {
		found = apierrors.NewInternalError(err)
	}
	status := found.(apierrors.APIStatus).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return &status
}

// Recorder records a response.
type Recorder struct {
	Code   int
	Body   bytes.Buffer
	header http.Header
}

// NewRecorder returns a recorder without a response.
func NewRecorder() *Recorder { return &Recorder{header: http.Header{}} }

// Header implements http.ResponseWriter.
func (r *Recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(code int) {
	if r.Code == 0 {
		r.Code = code
	}
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.Body.Write(b)
}

// ErrorOf returns a response as an error.
func ErrorOf(code int, body []byte) error {
	status := metav1.Status{}
	if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" || status.Code == 0 {
		return apierrors.NewGenericServerResponse(max(code, http.StatusBadRequest), "list", statusResource, "", string(body), 0, true)
	}
	return &apierrors.StatusError{ErrStatus: status}
}
