package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// approvalJenkinsService handles a POST to the subresource approval of a JenkinsService. Callers need only the verb
// create on jenkinsservices/approval. A decision stands until the spec changes: repeating it changes nothing, and
// another decision is a conflict.
func approvalJenkinsService(
	ctx context.Context,
	r *annex.ActionRequest[autobusiv1alpha.JenkinsService, autobusiv1alpha.JenkinsServiceApproval],
) (*autobusiv1alpha.JenkinsService, error) {
	decision := autobusiv1alpha.ApprovalStatus(r.Object.Decision)
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf(format, args...))
	}
	return r.UpdateStatus(ctx, func(j *autobusiv1alpha.JenkinsService) error {
		decided := j.Status.ApprovalStatus
		switch {
		case j.DeletionTimestamp != nil:
			return conflict("it is being deleted")
		case decided == decision:
			return nil
		case decided == autobusiv1alpha.Approved || decided == autobusiv1alpha.Rejected:
			return conflict("it is %s, and that stands until its spec changes", decided)
		}
		j.Status.ApprovalStatus = decision
		return nil
	})
}
