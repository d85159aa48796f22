package main

import (
	"context"
	"fmt"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// prepareJenkinsServiceForCreate runs after a client's status has been dropped.
func prepareJenkinsServiceForCreate(_ context.Context, j *autobusiv1alpha.JenkinsService) {
	j.Status.ApprovalStatus = autobusiv1alpha.Pending
}

// prepareJenkinsServiceForUpdate requires another approval for a changed spec. Otherwise a user who may update a
// JenkinsService could have one instance approved, and then ask for ten.
func prepareJenkinsServiceForUpdate(_ context.Context, j, old *autobusiv1alpha.JenkinsService) {
	if j.Spec != old.Spec {
		j.Status.ApprovalStatus = autobusiv1alpha.Pending
	}
}

// jenkinsServiceColumns are the columns of kubectl get between the name and the age.
var jenkinsServiceColumns = []annex.Column[autobusiv1alpha.JenkinsService]{
	{Name: "Approval", Value: func(j *autobusiv1alpha.JenkinsService) any { return string(j.Status.ApprovalStatus) }},
	{Name: "Running", Description: "instances that run, of those wanted", Value: func(j *autobusiv1alpha.JenkinsService) any {
		return fmt.Sprintf("%d/%d", running(j), j.Spec.InstanceAmount)
	}},
	{Name: "CPU", Type: "integer", Description: "processors of each instance", Value: func(j *autobusiv1alpha.JenkinsService) any {
		return int64(j.Spec.InstanceCPU)
	}},
}

func running(j *autobusiv1alpha.JenkinsService) int {
	n := 0
	for _, i := range j.Status.Instances {
		if i.Running {
			n++
		}
	}
	return n
}
