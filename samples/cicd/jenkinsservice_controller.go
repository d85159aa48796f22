package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/annexapi/annex"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// instancesFinalizer keeps a JenkinsService until its instances are gone.
const instancesFinalizer = "autobusi.group.cicd/instances"

// jenkinsServiceController starts the approved instances of each JenkinsService, and stops them when it is rejected or
// deleted. It runs inside the server, or in a process of its own with the verb controllers; Annex elects a
// leader, so the manager here does not. The instances are children of the process in which the controller runs.
type jenkinsServiceController struct {
	client.Client
	instances *instances
}

// runJenkinsServiceController runs until ctx ends. Then it stops the instances and records that in their status.
func (s *instances) runJenkinsServiceController(ctx context.Context, env *annex.Env) (err error) {
	scheme := runtime.NewScheme()
	if err := autobusiv1alpha.AddToScheme(scheme); err != nil {
		return err
	}
	// The library also logs without a manager.
	ctrl.SetLogger(klog.FromContext(ctx))
	// The name is used for metrics, which all servers of a process share.
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
	changes := make(chan event.TypedGenericEvent[*autobusiv1alpha.JenkinsService])
	tell := func(service types.NamespacedName) {
		j := &autobusiv1alpha.JenkinsService{}
		j.Namespace, j.Name = service.Namespace, service.Name
		select {
		case changes <- event.TypedGenericEvent[*autobusiv1alpha.JenkinsService]{Object: j}:
		case <-ctx.Done():
		}
	}
	if err := s.open(tell); err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	c := &jenkinsServiceController{manager.GetClient(), s}
	defer func() { err = errors.Join(err, s.close(), c.noneRuns(ctx, manager.GetConfig(), scheme)) }()
	if err := ctrl.NewControllerManagedBy(manager).
		For(&autobusiv1alpha.JenkinsService{}).
		WatchesRawSource(source.TypedChannel(changes, &handler.TypedEnqueueRequestForObject[*autobusiv1alpha.JenkinsService]{})).
		Complete(c); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return manager.Start(ctx)
}

// noneRuns records in all statuses that no instance runs. If it fails, the next controller does so.
func (c *jenkinsServiceController) noneRuns(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), instanceGrace)
	defer cancel()
	direct, err := client.New(config, client.Options{Scheme: scheme}) // the manager's cache has stopped
	if err != nil {
		return err
	}
	list := &autobusiv1alpha.JenkinsServiceList{}
	if err := direct.List(ctx, list); err != nil {
		return fmt.Errorf("say that no instance runs: %w", err)
	}
	var errs []error
	for i := range list.Items {
		j := &list.Items[i]
		if c.observe(j) {
			errs = append(errs, client.IgnoreNotFound(direct.Status().Update(ctx, j)))
		}
	}
	return errors.Join(errs...)
}

// Reconcile takes one step towards the desired state of a JenkinsService. A step is a write, or the start or end of a
// process, and its event triggers the next step. So instances start and stop one after another.
func (c *jenkinsServiceController) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	j := &autobusiv1alpha.JenkinsService{}
	if err := c.Get(ctx, request.NamespacedName, j); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	wait, err := c.step(ctx, j)
	if apierrors.IsConflict(err) {
		err = nil // the newer object causes another call
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

func (c *jenkinsServiceController) step(ctx context.Context, j *autobusiv1alpha.JenkinsService) (wait time.Duration, err error) {
	deleted := j.DeletionTimestamp != nil
	if !deleted && j.Status.ApprovalStatus == autobusiv1alpha.Approved && controllerutil.AddFinalizer(j, instancesFinalizer) {
		return 0, c.Update(ctx, j)
	}
	if c.observe(j) {
		return 0, c.Status().Update(ctx, j)
	}
	for skipped := 0; ; skipped++ {
		switch next, number := nextStep(j, skipped); next {
		case writeStatus:
			c.instances.forget(j.UID, len(j.Status.Instances))
			return 0, c.Status().Update(ctx, j)
		case stopInstance:
			c.instances.stop(j.UID, number)
			return 0, nil // its end triggers the next step
		case startInstance:
			backoff, err := c.instances.start(j, number)
			if err != nil {
				return 0, err
			}
			if backoff == 0 && c.observe(j) {
				return 0, c.Status().Update(ctx, j)
			}
			if backoff == 0 {
				return 0, nil
			}
			if wait == 0 || backoff < wait {
				wait = backoff
			}
			continue // others need not wait
		}
		break
	}
	if deleted && controllerutil.RemoveFinalizer(j, instancesFinalizer) {
		c.instances.forget(j.UID, 0)
		return 0, c.Update(ctx, j)
	}
	return wait, nil
}

// observe updates the status with the running instances, and reports whether it has changed.
func (c *jenkinsServiceController) observe(j *autobusiv1alpha.JenkinsService) bool {
	changed := false
	for i := range j.Status.Instances {
		if runs := c.instances.runs(j.UID, i); runs != j.Status.Instances[i].Running {
			j.Status.Instances[i].Running, changed = runs, true
		}
	}
	return changed
}

// step is the next step of the controller.
type step string

const (
	nothing       step = ""
	writeStatus   step = "write" // the status has been changed
	stopInstance  step = "stop"
	startInstance step = "start"
)

// nextStep returns the next step towards the desired state, and the number of its instance. It skips the first
// skipped instances that could be started, since they have failed recently.
func nextStep(j *autobusiv1alpha.JenkinsService, skipped int) (step, int) {
	instances := j.Status.Instances
	want, cpu := len(instances), int32(0) // the approved instances stay until there is a new decision
	switch {
	case j.DeletionTimestamp != nil || j.Status.ApprovalStatus == autobusiv1alpha.Rejected:
		want = 0
	case j.Status.ApprovalStatus == autobusiv1alpha.Approved:
		want, cpu = int(j.Spec.InstanceAmount), j.Spec.InstanceCPU
	}

	for i := len(instances) - 1; i >= want; i-- {
		if instances[i].Running {
			return stopInstance, i
		}
	}
	switch {
	case len(instances) > want:
		j.Status.Instances = instances[:want]
		return writeStatus, 0
	case len(instances) < want:
		for len(j.Status.Instances) < want {
			j.Status.Instances = append(j.Status.Instances, autobusiv1alpha.JenkinsInstance{CPU: cpu})
		}
		return writeStatus, 0
	}
	for i := range instances {
		switch instance := &instances[i]; {
		case cpu != 0 && instance.CPU != cpu && instance.Running:
			return stopInstance, i
		case cpu != 0 && instance.CPU != cpu:
			instance.CPU = cpu
			return writeStatus, 0
		case instance.Running:
		case skipped > 0:
			skipped--
		default:
			return startInstance, i
		}
	}
	return nothing, 0
}
