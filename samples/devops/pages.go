package main

import (
	"encoding/json"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"example.com/devops/apis/devops/v1alpha1"
	"example.com/devops/apis/devops/v1alpha3"
)

// page is a page of runs: PipelineRuns as in the query API, or runSummaries.
type page struct {
	Items           []any  `json:"items"`
	TotalItems      int    `json:"totalItems"`
	ResourceVersion string `json:"resourceVersion"`
	Cursor          string `json:"cursor,omitempty"`

	Facets json.RawMessage `json:"facets,omitempty"`
}

// runSummary is the older form of a run, in the terms of v1alpha1.
type runSummary struct {
	Name                 string         `json:"name"`
	Namespace            string         `json:"namespace"`
	Pipeline             string         `json:"pipeline"`
	Branch               string         `json:"branch,omitempty"`
	State                v1alpha1.State `json:"state"`
	Message              string         `json:"message,omitempty"`
	QueuedTime           metav1.Time    `json:"queuedTime"`
	StartTime            *metav1.Time   `json:"startTime,omitempty"`
	EndTime              *metav1.Time   `json:"endTime,omitempty"`
	DurationMilliseconds int64          `json:"durationMilliseconds,omitempty"`
}

// listRuns answers with a page of a pipeline's runs: the answer of the query API, in the terms of the front ends.
// Pipelines use the pages of the query API itself.
func (k *kapis) listRuns(w http.ResponseWriter, r *http.Request) error {
	asked := r.URL.Query()
	backward, err := boolean(asked, "backward", true)
	if err != nil {
		return err
	}
	query, err := queryOf(asked, r.PathValue("pipeline"))
	if err != nil {
		return err
	}
	request := k.rest().Get().AbsPath(kapisPath + "namespaces/" + r.PathValue("namespace") + "/pipelineruns")
	for name, values := range query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	answer, err := request.Do(r.Context()).Raw()
	if err != nil {
		return detailed(answer, err)
	}
	if !backward {
		writeJSON(w, http.StatusOK, answer)
		return nil
	}
	var runs struct{ Items []v1alpha3.PipelineRun }
	shown := &page{}
	if err := json.Unmarshal(answer, shown); err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &runs); err != nil {
		return err
	}
	for i := range runs.Items {
		shown.Items[i] = summary(&runs.Items[i])
	}
	return answerJSON(w, http.StatusOK, shown)
}

// queryOf returns the query API's parameters for a page of a pipeline's runs. Parameters without another name here
// are passed on; the query API refuses unknown ones.
func queryOf(asked url.Values, pipeline string) (url.Values, error) {
	query := url.Values{"limit": {"10"}, "sortBy": {"creationTimestamp"}, "ascending": {"false"}}
	for name, values := range asked {
		query[name] = values
	}
	if query.Has("watch") {
		return nil, apierrors.NewBadRequest("parameter watch: here are pages; pipelineruns of the namespace can be followed")
	}
	if branch, ok := query["branch"]; ok && branch[0] != "" {
		query["spec.scm.refName"] = branch
	}
	if field := map[string]string{"startTime": "status.startTime",
		"completionTime": "status.completionTime"}[query.Get("sortBy")]; field != "" {
		query.Set("sortBy", field)
	}
	query.Set("spec.pipelineRef.name", pipeline)
	query.Del("backward")
	query.Del("branch")
	return query, nil
}

func summary(run *v1alpha3.PipelineRun) *runSummary {
	s := &runSummary{
		Name: run.Name, Namespace: run.Namespace, Pipeline: run.Spec.PipelineRef.Name, State: v1alpha1.StateOf(run.Status.Phase),
		QueuedTime: run.CreationTimestamp, StartTime: run.Status.StartTime, EndTime: run.Status.CompletionTime,
	}
	if s.State == "" {
		s.State = v1alpha1.Queued
	}
	if run.Spec.SCM != nil {
		s.Branch = run.Spec.SCM.RefName
	}
	if s.StartTime != nil && s.EndTime != nil {
		s.DurationMilliseconds = s.EndTime.Sub(s.StartTime.Time).Milliseconds()
	}
	for _, c := range run.Status.Conditions {
		if c.Type == v1alpha3.Succeeded {
			s.Message = c.Message
		}
	}
	return s
}
