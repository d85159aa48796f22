package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"example.com/devops/apis/devops/v1alpha1"
	"example.com/devops/apis/devops/v1alpha3"
	"example.com/devops/client/clientset"
)

const (
	defaultLimit = 10
	maxLimit     = 1000
)

// query is which objects are wanted, and how many of them.
type query struct {
	page, limit   int
	sortBy        string
	ascending     bool
	name          string
	branch        string
	labelSelector string
	full          bool
}

// page is a part of the objects, and how many there are.
type page struct {
	Items      []any `json:"items"`
	TotalItems int   `json:"totalItems"`
}

// runSummary is the older form of a run, in the words of v1alpha1.
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

var (
	pipelineSorts = []string{"creationTimestamp", "name"}
	runSorts      = []string{"completionTime", "creationTimestamp", "name", "startTime"}
)

// parseQuery reads the parameters of a list of pipelines, or of runs. What it does not know it refuses.
func parseQuery(values url.Values, ofRuns bool) (query, error) {
	q := query{page: 1, limit: defaultLimit, sortBy: "creationTimestamp", full: !ofRuns}
	known, sorts := []string{"ascending", "labelSelector", "limit", "name", "page", "sortBy"}, pipelineSorts
	if ofRuns {
		known, sorts = append(known, "backward", "branch"), runSorts
	}
	rest := url.Values{}
	for name, value := range values {
		if !slices.Contains(known, name) {
			rest[name] = value
		} else if len(value) > 1 {
			return q, apierrors.NewBadRequest(fmt.Sprintf("parameter %s is given twice", name))
		}
	}
	if err := nothingElse(rest, known...); err != nil {
		return q, err
	}
	q.name, q.branch, q.labelSelector = values.Get("name"), values.Get("branch"), values.Get("labelSelector")
	if _, err := labels.Parse(q.labelSelector); err != nil {
		return q, apierrors.NewBadRequest("parameter labelSelector: " + err.Error())
	}
	if by := values.Get("sortBy"); by != "" {
		if !slices.Contains(sorts, by) {
			return q, apierrors.NewBadRequest(fmt.Sprintf("parameter sortBy is %q: use one of %s", by, strings.Join(sorts, ", ")))
		}
		q.sortBy = by
	}
	for name, at := range map[string]struct {
		to  *int
		max int
	}{"page": {&q.page, 1_000_000}, "limit": {&q.limit, maxLimit}} {
		if text := values.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > at.max {
				return q, apierrors.NewBadRequest(fmt.Sprintf("parameter %s is %q: use a number from 1 to %d", name, text, at.max))
			}
			*at.to = n
		}
	}
	var err error
	if q.ascending, err = boolean(values, "ascending", false); err != nil {
		return q, err
	}
	backward, err := boolean(values, "backward", true)
	q.full = q.full || !backward
	return q, err
}

// pages reads pages as the caller: it lists all, and sorts.
type pages struct{ client clientset.Interface }

func (p pages) pipelines(ctx context.Context, namespace string, q query) (*page, error) {
	list, err := p.client.DevopsV1alpha3().Pipelines(namespace).List(ctx, metav1.ListOptions{LabelSelector: q.labelSelector})
	if err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(list.Items, func(p v1alpha3.Pipeline) bool { return !strings.Contains(p.Name, q.name) })
	return cut(wanted, q, func(p *v1alpha3.Pipeline) time.Time { return p.CreationTimestamp.Time }, func(p *v1alpha3.Pipeline) string { return p.Name },
		func(p *v1alpha3.Pipeline) any {
			p.APIVersion, p.Kind, p.ManagedFields = group+"/v1alpha3", "Pipeline", nil
			return p
		}), nil
}

func (p pages) runs(ctx context.Context, namespace, pipeline string, q query) (*page, error) {
	selected := fields.Set{"spec.pipelineRef.name": pipeline}
	if q.branch != "" {
		selected["spec.scm.refName"] = q.branch
	}
	list, err := p.client.DevopsV1alpha3().PipelineRuns(namespace).List(ctx, metav1.ListOptions{LabelSelector: q.labelSelector, FieldSelector: selected.String()})
	if err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(list.Items, func(r v1alpha3.PipelineRun) bool { return !strings.Contains(r.Name, q.name) })
	at := func(r *v1alpha3.PipelineRun) time.Time {
		t := &r.CreationTimestamp
		switch q.sortBy {
		case "startTime":
			t = r.Status.StartTime
		case "completionTime":
			t = r.Status.CompletionTime
		}
		if t == nil {
			return time.Time{}
		}
		return t.Time
	}
	return cut(wanted, q, at, func(r *v1alpha3.PipelineRun) string { return r.Name }, func(r *v1alpha3.PipelineRun) any {
		if q.full {
			return named(r)
		}
		return summary(r)
	}), nil
}

// cut sorts objects by a time unless it is by name, and returns a page of them. Ties are broken by name.
func cut[T any](all []T, q query, at func(*T) time.Time, name func(*T) string, show func(*T) any) *page {
	slices.SortFunc(all, func(a, b T) int {
		order := cmp.Compare(name(&a), name(&b))
		if q.sortBy != "name" {
			order = cmp.Or(at(&a).Compare(at(&b)), order)
		}
		if !q.ascending {
			order = -order
		}
		return order
	})
	p := &page{Items: []any{}, TotalItems: len(all)}
	from := min((q.page-1)*q.limit, len(all))
	for i := range all[from:min(from+q.limit, len(all))] {
		p.Items = append(p.Items, show(&all[from+i]))
	}
	return p
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
