package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// maxJenkinsServices is how many JenkinsServices there may be in the whole server.
const maxJenkinsServices = 10

// admitJenkinsServiceCreate keeps the quota. It and the write are one step, also across
// replicas: existing is exact, which an informer's cache would not be.
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

// admitJenkinsService refuses approvals through /status: a writer of /status, such as the
// controller, may not decide.
func admitJenkinsService(_ context.Context, r annex.Request[autobusiv1alpha.JenkinsService]) error {
	if r.Operation == annex.Update && r.Subresource == "status" && r.Object.Status.ApprovalStatus != r.Old.Status.ApprovalStatus {
		return errors.New("status.approvalstatus is decided at the subresource approval")
	}
	return nil
}
