package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex/stream"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// logsJenkinsService answers a GET of the subresource logs with the output of an instance. A failed instance has a
// log, a drained one has none.
func (s *instances) logsJenkinsService(_ context.Context, r *stream.LogRequest[autobusiv1alpha.JenkinsService]) (io.ReadCloser, error) {
	i, err := s.find(&r.Request, r.Options.Container)
	if err != nil {
		return nil, err
	}
	r.Options.Container = ""
	return i.logs.Open(&r.Options)
}

// find returns the instance that a client selects by its number; the default is 0.
func (s *instances) find(r *stream.Request[autobusiv1alpha.JenkinsService], container string) (*instance, error) {
	there := r.Object.Status.Instances
	if len(there) == 0 {
		return nil, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf("it has no instances: it is %s", state(r.Object)))
	}
	number := 0
	if container != "" {
		n, err := strconv.Atoi(container)
		if err != nil || n < 0 || n >= len(there) || strconv.Itoa(n) != container {
			return nil, apierrors.NewBadRequest(
				fmt.Sprintf("container %s is not valid for %s %s: its instances are 0 to %d", container, r.Resource.Resource, r.Name, len(there)-1),
			)
		}
		number = n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.all[instanceKey{r.Object.UID, number}]
	switch {
	case i == nil && there[number].Running:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("instance %d of %s runs where the controllers of this server run, which is "+
			"another process: ask that", number, r.Name))
	case i == nil:
		return nil, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf("instance %d has not started", number))
	case i.process == nil && i.stopping:
		return nil, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf("instance %d has been drained", number))
	}
	return i, nil
}

// state returns the reason why a JenkinsService has no instances.
func state(j *autobusiv1alpha.JenkinsService) string {
	switch {
	case j.DeletionTimestamp != nil:
		return "being deleted, and drained"
	case j.Status.ApprovalStatus == autobusiv1alpha.Approved:
		return "approved, and they are about to start"
	}
	if j.Status.ApprovalStatus != autobusiv1alpha.Pending {
		return string(j.Status.ApprovalStatus)
	}
	return fmt.Sprintf(`%s, and starts instances once it is approved: kubectl annex approval jenkinsservices/%s -n %s `+
		`--decision=Approved, or `+
		`POST {"decision":"Approved"} to its subresource approval`, j.Status.ApprovalStatus, j.Name, j.Namespace)
}
