package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// maxJenkinsServices bounds the JenkinsServices in the whole server.
const maxJenkinsServices = 10

// admitJenkinsServiceCreate enforces the quota. The check and the write are one step, even across replicas: existing
// is exact, unlike an informer's cache.
func admitJenkinsServiceCreate(
	_ context.Context,
	_ annex.Request[autobusiv1alpha.JenkinsService],
	existing []*autobusiv1alpha.JenkinsService,
) error {
	if len(existing) >= maxJenkinsServices {
		return fmt.Errorf("at most %d JenkinsServices may exist in the whole server, and there are %d", maxJenkinsServices, len(existing))
	}
	return nil
}

// admitJenkinsService refuses approvals through /status, so that a writer of /status, such as the controller, cannot
// decide.
func admitJenkinsService(_ context.Context, r annex.Request[autobusiv1alpha.JenkinsService]) error {
	if r.Operation == annex.Update && r.Subresource == "status" && r.Object.Status.ApprovalStatus != r.Old.Status.ApprovalStatus {
		return errors.New("status.approvalstatus is decided at the subresource approval")
	}
	return nil
}
