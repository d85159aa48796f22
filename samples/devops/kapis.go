package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"example.com/devops/apis/devops/v1alpha3"
	"example.com/devops/client/clientset"
)

const (
	// queries is the path of the query API, at which the server itself answers pages and tails of all its resources.
	queries   = "/kapis"
	kapisPath = queries + "/devops.devops.io/v1alpha3/"
	// maxBody bounds the size of a body.
	maxBody = 1 << 20
)

// kapis is the REST API for front ends, beyond the query API. It calls the API as the caller, with the caller's
// rights.
type kapis struct {
	client clientset.Interface
	dir    string // of runs
}

func newKapis(caller *rest.Config, dir string) (http.Handler, error) {
	client, err := clientset.NewForConfig(caller)
	if err != nil {
		return nil, err
	}
	k := &kapis{client: client, dir: dir}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST " + pipelinesPath:             k.createPipeline,
		"GET " + pipelinePath:               k.getPipeline,
		"PUT " + pipelinePath:               k.updatePipeline,
		"DELETE " + pipelinePath:            k.deletePipeline,
		"GET " + pipelineRunsPath:           k.listRuns,
		"POST " + pipelineRunsPath:          k.createRun,
		"GET " + pipelineRunPath:            k.getRun,
		"DELETE " + pipelineRunPath:         k.deleteRun,
		"POST " + pipelineRunPath + "/stop": k.stopRun,
		"GET " + pipelineRunPath + "/log":   k.readLog,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := answer(w, r); err != nil {
				answerError(w, err)
			}
		})
	}
	return statusErrors{mux}, nil
}

const (
	pipelinesPath    = kapisPath + "namespaces/{namespace}/pipelines"
	pipelinePath     = pipelinesPath + "/{pipeline}"
	pipelineRunsPath = pipelinePath + "/pipelineruns"
	pipelineRunPath  = pipelineRunsPath + "/{run}"
)

// statusErrors answers requests without a route as the API does.
type statusErrors struct{ mux *http.ServeMux }

func (s statusErrors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := s.mux.Handler(r); pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	// The mux knows the methods of a path.
	answer := &refusal{header: http.Header{}}
	s.mux.ServeHTTP(answer, r)
	if allow := answer.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		answerError(w, apierrors.NewMethodNotSupported(schema.GroupResource{Group: group, Resource: r.URL.Path}, r.Method))
		return
	}
	answerError(w, notFound("there is no such path: "+r.URL.Path))
}

// notFound returns a NotFound error for something that is not an object.
func notFound(message string) error {
	return &apierrors.StatusError{
		ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: message},
	}
}

// refusal keeps the header of a response.
type refusal struct{ header http.Header }

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(p []byte) (int, error) { return len(p), nil }
func (r *refusal) WriteHeader(int)             {}

var kapisParts = regexp.MustCompile(
	`^` + regexp.QuoteMeta(kapisPath) + `namespaces/([^/]+)/pipelines(?:/([^/]+)(?:/(pipelineruns)(?:/([^/]+)(?:/(stop|log))?)?)?)?$`,
)

// resourceOf returns the attributes by which a request is authorized: those of a request for the objects behind it. A
// request without a route is authorized by its path, through the nonResourceURLs of roles.
func resourceOf(r *http.Request) *authorizationv1.ResourceAttributes {
	part := kapisParts.FindStringSubmatch(r.URL.Path)
	if part == nil {
		return nil
	}
	as := &authorizationv1.ResourceAttributes{Group: group, Version: "v1alpha3", Namespace: part[1], Resource: "pipelines", Name: part[2]}
	if part[3] != "" {
		as.Resource, as.Name = part[3], part[4]
	}
	verbs := map[string]string{
		http.MethodGet:    "get",
		http.MethodHead:   "get",
		http.MethodPost:   "create",
		http.MethodPut:    "update",
		http.MethodDelete: "delete",
	}
	as.Verb = verbs[r.Method]
	switch {
	case as.Verb == "":
		return nil
	case part[5] == "stop":
		as.Verb = "patch"
	case part[5] == "log":
		as.Subresource = "log"
	case as.Name == "" && as.Verb == "get":
		as.Verb = "list"
	}
	return as
}

// longRunning reports whether a request may take as long as its run.
func longRunning(r *http.Request) bool {
	part := kapisParts.FindStringSubmatch(r.URL.Path)
	return part != nil && r.Method == http.MethodGet && part[5] == "log"
}

func (k *kapis) getPipeline(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return k.pass(w, r, k.rest().Get().Name(r.PathValue("pipeline")), http.StatusOK)
}

func (k *kapis) createPipeline(w http.ResponseWriter, r *http.Request) error {
	body, err := pipelineIn(w, r)
	if err != nil {
		return err
	}
	return k.pass(w, r, k.rest().Post().Param("fieldValidation", metav1.FieldValidationStrict).Body(body), http.StatusCreated)
}

func (k *kapis) updatePipeline(w http.ResponseWriter, r *http.Request) error {
	body, err := pipelineIn(w, r)
	if err != nil {
		return err
	}
	return k.pass(
		w,
		r,
		k.rest().Put().Name(r.PathValue("pipeline")).Param("fieldValidation", metav1.FieldValidationStrict).Body(body),
		http.StatusOK,
	)
}

func (k *kapis) deletePipeline(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return k.pass(w, r, k.rest().Delete().Name(r.PathValue("pipeline")), http.StatusOK)
}

// rest returns a client for requests as the caller, whose answers can be passed on.
func (k *kapis) rest() rest.Interface { return k.client.DevopsV1alpha3().RESTClient() }

// pass sends a request to the API and passes its answer on.
func (k *kapis) pass(w http.ResponseWriter, r *http.Request, request *rest.Request, code int) error {
	answer, err := request.Namespace(r.PathValue("namespace")).
		Resource("pipelines").
		SetHeader("Content-Type", "application/json").
		Do(r.Context()).
		Raw()
	if err != nil {
		return detailed(answer, err)
	}
	writeJSON(w, code, answer)
	return nil
}

// detailed returns the API's own error, which has more details than the client's.
func detailed(answer []byte, err error) error {
	status := &apierrors.StatusError{}
	if json.Unmarshal(answer, &status.ErrStatus) == nil && status.ErrStatus.Kind == "Status" {
		return status
	}
	return err
}

// pipelineIn returns the pipeline in a body, which need not contain its kind.
func pipelineIn(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if err := noQuery(r); err != nil {
		return nil, err
	}
	var object map[string]any
	if err := decodeBody(w, r, &object); err != nil {
		return nil, err
	}
	for field, value := range map[string]string{"apiVersion": group + "/v1alpha3", "kind": "Pipeline"} {
		if object[field] == nil {
			object[field] = value
		}
	}
	return json.Marshal(object)
}

// runRequest is the body of a request to run a pipeline.
type runRequest struct {
	Branch     string               `json:"branch,omitempty"`
	Parameters []v1alpha3.Parameter `json:"parameters,omitempty"`
}

func (k *kapis) createRun(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var body runRequest
	if err := decodeBody(w, r, &body); err != nil {
		return err
	}
	namespace, name := r.PathValue("namespace"), r.PathValue("pipeline")
	pipeline, err := k.client.DevopsV1alpha3().Pipelines(namespace).Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	run := &v1alpha3.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec:       v1alpha3.PipelineRunSpec{PipelineRef: v1alpha3.PipelineReference{Name: name}, Parameters: body.Parameters},
	}
	if body.Branch != "" {
		run.Spec.SCM = &v1alpha3.SCM{RefType: v1alpha3.Branch, RefName: body.Branch}
	}
	if err := checkRun(pipeline, &run.Spec); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	created, err := k.client.DevopsV1alpha3().
		PipelineRuns(namespace).
		Create(r.Context(), run, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusCreated, named(created))
}

// run returns the run of a request, if it belongs to the pipeline in the path.
func (k *kapis) run(r *http.Request) (*v1alpha3.PipelineRun, error) {
	run, err := k.client.DevopsV1alpha3().PipelineRuns(r.PathValue("namespace")).Get(r.Context(), r.PathValue("run"), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if run.Spec.PipelineRef.Name != r.PathValue("pipeline") {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "pipelineruns"}, run.Name)
	}
	return named(run), nil
}

// named sets the kind of an object, which clients omit, and removes its managed fields.
func named(run *v1alpha3.PipelineRun) *v1alpha3.PipelineRun {
	run.APIVersion, run.Kind, run.ManagedFields = group+"/v1alpha3", "PipelineRun", nil
	return run
}

func (k *kapis) getRun(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	run, err := k.run(r)
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, run)
}

func (k *kapis) deleteRun(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	run, err := k.run(r)
	if err != nil {
		return err
	}
	err = k.client.DevopsV1alpha3().
		PipelineRuns(run.Namespace).
		Delete(r.Context(), run.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(run.UID))})
	if err != nil {
		return err
	}
	return answerJSON(
		w,
		http.StatusOK,
		&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: http.StatusOK},
	)
}

func (k *kapis) stopRun(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	run, err := k.run(r)
	if err != nil {
		return err
	}
	if run.Status.Phase.Final() {
		return apierrors.NewConflict(
			schema.GroupResource{Group: group, Resource: "pipelineruns"},
			run.Name,
			fmt.Errorf("it has ended: it is %s", run.Status.Phase),
		)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": run.UID}, "spec": map[string]any{"action": v1alpha3.Stop}})
	if err != nil {
		return err
	}
	stopped, err := k.client.DevopsV1alpha3().
		PipelineRuns(run.Namespace).
		Patch(r.Context(), run.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusAccepted, named(stopped))
}

func (k *kapis) readLog(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	follow, err := boolean(query, "follow", false)
	if err != nil {
		return err
	}
	query.Del("follow")
	if err := nothingElse(query, "follow"); err != nil {
		return err
	}
	run, err := k.run(r)
	if err != nil {
		return err
	}
	out := &lazyHeader{ResponseWriter: w, header: http.Header{
		"Content-Type":           {"text/plain; charset=utf-8"},
		"Content-Disposition":    {fmt.Sprintf("attachment; filename=%q", run.Name+".log")},
		"X-Content-Type-Options": {"nosniff"},
	}}
	flush := func() {
		if !follow {
			return
		}
		out.begin()
		_ = http.NewResponseController(w).Flush() // the next write reports an error if the client is gone
	}
	err = copyLog(r.Context(), out, flush, folderOf(k.dir, run.UID), follow, func() (bool, error) {
		current, err := k.run(r)
		return err == nil && (current.Status.Phase.Final() || current.UID != run.UID), err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return notFound("run " + run.Name + " has no log here: it has not begun, or another process runs it")
	case err != nil && !out.begun:
		return err
	case err != nil:
		panic(http.ErrAbortHandler) // so that the client does not take half a log for a whole one
	}
	out.begin()
	return nil
}

// lazyHeader writes its header before the first byte, so that an error can still be answered until then.
type lazyHeader struct {
	http.ResponseWriter
	header http.Header
	begun  bool
}

func (l *lazyHeader) begin() {
	if l.begun {
		return
	}
	l.begun = true
	for name, values := range l.header {
		l.ResponseWriter.Header()[name] = values
	}
	l.WriteHeader(http.StatusOK)
}

func (l *lazyHeader) Write(p []byte) (int, error) {
	l.begin()
	return l.ResponseWriter.Write(p)
}

// decodeBody decodes a JSON object without unknown fields.
func decodeBody(w http.ResponseWriter, r *http.Request, into any) error {
	// A page of another site can make a browser with a client certificate send forms, but not JSON.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: fmt.Sprintf("the body is of type %q: send application/json", media),
		}}
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body is longer than %d bytes", large.Limit))
	case err != nil:
		return apierrors.NewBadRequest("read the body: " + err.Error())
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return apierrors.NewBadRequest("the body is not the JSON that is wanted: " + err.Error())
	}
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return apierrors.NewBadRequest("the body is null: an object is wanted")
	}
	if decoder.More() {
		return apierrors.NewBadRequest("the body has something behind its JSON")
	}
	return nil
}

func noQuery(r *http.Request) error { return nothingElse(r.URL.Query()) }

// nothingElse refuses unknown parameters.
func nothingElse(query url.Values, known ...string) error {
	for name := range query {
		there := "there are none"
		if len(known) > 0 {
			there = "there are " + strings.Join(known, ", ")
		}
		return apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q: %s", name, there))
	}
	return nil
}

// boolean returns a parameter that is true or false.
func boolean(query url.Values, name string, otherwise bool) (bool, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest(fmt.Sprintf("parameter %s is %q: use true or false", name, text))
	}
	return value, nil
}

func answerJSON(w http.ResponseWriter, code int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	writeJSON(w, code, body)
	return nil
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the client is gone
}

// answerError answers with an error as the API does.
func answerError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	status := metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonInternalError,
		Message: err.Error(),
	}
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if body, err := json.Marshal(status); err == nil {
		writeJSON(w, int(status.Code), body)
	}
}
