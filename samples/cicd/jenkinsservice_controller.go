package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// instancesFinalizer holds a JenkinsService until its instances are gone.
const instancesFinalizer = "autobusi.group.cicd/instances"

// jenkinsServiceController gives each JenkinsService the instances that were approved,
// and takes them from those that are rejected or deleted. It runs inside the server, or
// in a process of its own with the verb controllers, which elects a leader: the manager
// here need not.
type jenkinsServiceController struct {
	client.Client
}

// runJenkinsServiceController works until ctx ends.
func runJenkinsServiceController(ctx context.Context, env *annex.Env) error {
	scheme := runtime.NewScheme()
	if err := autobusiv1alpha.AddToScheme(scheme); err != nil {
		return err
	}
	// A name is for metrics, which all servers of a process share.
	shared := true
	manager, err := ctrl.NewManager(env.ClientConfig(), ctrl.Options{
		Scheme:     scheme,
		Logger:     klog.FromContext(ctx),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &shared},
	})
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(manager).
		For(&autobusiv1alpha.JenkinsService{}).
		Complete(&jenkinsServiceController{manager.GetClient()}); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return manager.Start(ctx)
}

// Reconcile takes one step towards what a JenkinsService asks for. Each is a write, whose
// event is the reason for the next; so instances start, and stop, one after another.
func (c *jenkinsServiceController) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	j := &autobusiv1alpha.JenkinsService{}
	if err := c.Get(ctx, request.NamespacedName, j); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	err := c.step(ctx, j)
	if apierrors.IsConflict(err) {
		err = nil // the newer object comes by itself
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (c *jenkinsServiceController) step(ctx context.Context, j *autobusiv1alpha.JenkinsService) error {
	switch deleted := j.DeletionTimestamp != nil; {
	case !deleted && j.Status.ApprovalStatus == autobusiv1alpha.Approved && controllerutil.AddFinalizer(j, instancesFinalizer):
		return c.Update(ctx, j)
	case nextInstances(j):
		return c.Status().Update(ctx, j)
	case deleted && controllerutil.RemoveFinalizer(j, instancesFinalizer):
		return c.Update(ctx, j)
	}
	return nil
}

// nextInstances changes the instances by one step towards what there shall be, and says
// whether there was anything to change.
func nextInstances(j *autobusiv1alpha.JenkinsService) bool {
	var want int
	switch {
	case j.DeletionTimestamp != nil || j.Status.ApprovalStatus == autobusiv1alpha.Rejected:
	case j.Status.ApprovalStatus == autobusiv1alpha.Approved:
		want = int(j.Spec.InstanceAmount)
	default:
		return false // what was approved before stays until there is a decision
	}

	instances := j.Status.Instances
	for i := len(instances) - 1; i >= want; i-- {
		if instances[i].Running {
			instances[i].Running = false
			return true
		}
	}
	switch {
	case len(instances) > want:
		j.Status.Instances = instances[:want]
		return true
	case len(instances) < want:
		for len(j.Status.Instances) < want {
			j.Status.Instances = append(j.Status.Instances, autobusiv1alpha.JenkinsInstance{CPU: j.Spec.InstanceCPU})
		}
		return true
	}
	for i := range instances {
		switch instance := &instances[i]; {
		case instance.CPU != j.Spec.InstanceCPU:
			*instance = autobusiv1alpha.JenkinsInstance{CPU: j.Spec.InstanceCPU} // it starts anew
			return true
		case !instance.Running:
			instance.Running = true
			return true
		}
	}
	return false
}
