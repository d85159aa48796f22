package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1beta1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/disruption"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/replication"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	"k8s.io/kubernetes/pkg/controller/volume/ephemeral"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
	"k8s.io/kubernetes/pkg/controller/volume/vacprotection"
	"k8s.io/kubernetes/pkg/features"
	resourcemetrics "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/server/loopback"
)

// controller is a controller of k8s.io/kubernetes. It has the name of kube-controller-manager, and acts as its account.
type controller struct {
	name, account string
	// open makes the controller and returns the function that runs it. The function returns when its context ends.
	open func(context.Context, cluster) (run func(context.Context), err error)
	// first returns when there is work for the controller, or when the context ends. Controllers that have it are on by
	// default, and cost no informers until then.
	first func(context.Context, cluster) error
}

// cluster is the server as controllers see it.
type cluster struct {
	config *rest.Config
	client kubernetes.Interface
	// shared are the informers of all controllers of the server.
	shared informers.SharedInformerFactory
}

// workers is the number of objects that a controller handles at a time, as in kube-controller-manager.
const workers = 5

// userAgent makes kube-controller-manager the manager of the fields that a controller writes. Tools that compare objects with
// manifests leave out the fields of that manager.
const userAgent = "kube-controller-manager/annex"

// endpointsPerSlice is the default of kube-controller-manager.
const endpointsPerSlice = 100

// all are the controllers that have work to do without nodes, in the order of their names in kube-controller-manager. Left
// out are those that
//   - work on nodes or with their kubelets: node-ipam, node-lifecycle, taint-eviction, ttl, certificatesigningrequest-*,
//     persistentvolume-attach-detach, device-taint-eviction;
//   - delete pods whose node does not exist: pod-garbage-collector would delete the pods that a test binds to a node it
//     has not created;
//   - create and resize volumes by plugins that need a node or a cloud: persistentvolume-binder, persistentvolume-expander;
//   - allocate for a scheduler: resourceclaim, podgroup-protection.
//
// The control plane has those for namespaces, garbage, service accounts, quotas, storage versions and policies itself.
func all() []controller {
	return []controller{
		{"endpoints-controller", "endpoint-controller", openEndpoints, nil},
		{"endpointslice-controller", "endpointslice-controller", openEndpointSlices, nil},
		{"endpointslice-mirroring-controller", "endpointslicemirroring-controller", openMirroring, nil},
		{"replicationcontroller-controller", "replication-controller", openReplicationControllers, nil},
		{"daemonset-controller", "daemon-set-controller", openDaemonSets, nil},
		{"job-controller", "job-controller", openJobs, nil},
		{"deployment-controller", "deployment-controller", openDeployments, nil},
		{"replicaset-controller", "replicaset-controller", openReplicaSets, nil},
		{"horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler", openAutoscalers, nil},
		{"disruption-controller", "disruption-controller", openDisruption, nil},
		{"statefulset-controller", "statefulset-controller", openStatefulSets, nil},
		{"cronjob-controller", "cronjob-controller", openCronJobs, nil},
		{"ttl-after-finished-controller", "ttl-after-finished-controller", openTTLAfterFinished, nil},
		{"ephemeral-volume-controller", "ephemeral-volume-controller", openEphemeralVolumes, nil},
		{"persistentvolumeclaim-protection-controller", "pvc-protection-controller", openClaimProtection, deletedClaim},
		{"persistentvolume-protection-controller", "pv-protection-controller", openVolumeProtection, deletedVolume},
		{
			"volumeattributesclass-protection-controller",
			"volumeattributesclass-protection-controller",
			openClassProtection,
			deletedClass,
		},
		{"service-cidr-controller", "service-cidrs-controller", openServiceCIDRs, nil},
	}
}

// Controllers implements definition.Extension.
func (e extension) Controllers() ([]define.Controller, error) {
	var declared []define.Controller
	for _, c := range all() {
		declared = append(declared, define.Controller{Name: c.name, Account: c.account, Run: func(ctx context.Context, env any) error {
			return e.informers.run(ctx, c, env.(*annex.Env).ClientConfig())
		}})
	}
	on, err := controllers.Select(declared, e.options.Controllers)
	if err != nil {
		return nil, fmt.Errorf("workloads.Options.Controllers: %w", err)
	}
	for i := range declared {
		selected := slices.ContainsFunc(on, func(c define.Controller) bool { return c.Name == declared[i].Name })
		excluded := slices.Contains(e.options.Controllers, "-"+declared[i].Name)
		declared[i].Off = !selected && (all()[i].first == nil || excluded)
	}
	return declared, nil
}

// run runs a controller until its context ends.
func (s *informerSets) run(ctx context.Context, c controller, server *rest.Config) error {
	on := cluster{config: rest.CopyConfig(loopback.SharingReads(server, user.KubeControllerManager, c.account))}
	on.config.UserAgent = userAgent
	var err error
	if on.client, err = kubernetes.NewForConfig(on.config); err != nil {
		return fmt.Errorf("client of the controller: %w", err)
	}
	if c.first != nil {
		if err := c.first(ctx, on); err != nil {
			return err
		}
	}
	shared, err := s.share(ctx, server)
	if err != nil {
		return err
	}
	defer s.release(server)
	on.shared = shared.factory
	run, err := c.open(ctx, on)
	if err != nil {
		return err
	}
	shared.factory.StartWithContext(shared.ctx)
	run(ctx)
	if ctx.Err() == nil {
		return errors.New("the controller ended by itself")
	}
	return ctx.Err()
}

func openEndpoints(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), on.client, 0)
	return withWorkers(c.Run), nil
}

func openEndpointSlices(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), on.shared.Discovery().V1().EndpointSlices(),
		endpointsPerSlice, on.client, 0)
	return withWorkers(c.Run), nil
}

func openMirroring(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c := endpointslicemirroring.NewController(ctx, core.Endpoints(), on.shared.Discovery().V1().EndpointSlices(), core.Services(),
		endpointsPerSlice*10, on.client, 0)
	return withWorkers(c.Run), nil
}

func openReplicationControllers(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c := replication.NewReplicationManager(unregistered(ctx), core.Pods(), core.ReplicationControllers(), on.client, replication.BurstReplicas)
	return withWorkers(c.Run), nil
}

func openReplicaSets(ctx context.Context, on cluster) (func(context.Context), error) {
	c := replicaset.NewReplicaSetController(unregistered(ctx), on.shared.Apps().V1().ReplicaSets(), on.shared.Core().V1().Pods(), on.client,
		replicaset.BurstReplicas)
	return withWorkers(c.Run), nil
}

// unregistered returns the context for the constructor of a controller that logs an error if another controller of the
// process has registered its metrics.
func unregistered(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

func openDaemonSets(ctx context.Context, on cluster) (func(context.Context), error) {
	apps, core := on.shared.Apps().V1(), on.shared.Core().V1()
	c, err := daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(), on.client,
		flowcontrol.NewBackOff(time.Second, 15*time.Minute))
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openJobs(ctx context.Context, on cluster) (func(context.Context), error) {
	var works schedulinginformers.WorkloadInformer
	var groups schedulinginformers.PodGroupInformer
	if utilfeature.DefaultFeatureGate.Enabled(features.WorkloadWithJob) {
		works, groups = on.shared.Scheduling().V1beta1().Workloads(), on.shared.Scheduling().V1beta1().PodGroups()
	}
	c, err := job.NewController(ctx, on.client, on.shared.Core().V1().Pods(), on.shared.Batch().V1().Jobs(), works, groups)
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openDeployments(ctx context.Context, on cluster) (func(context.Context), error) {
	apps := on.shared.Apps().V1()
	c, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), on.shared.Core().V1().Pods(), on.client)
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

// openAutoscalers makes the controller with the defaults of kube-controller-manager. Metrics come from servers behind the
// control plane; without any, the controller keeps to the minimum and the maximum.
func openAutoscalers(ctx context.Context, on cluster) (func(context.Context), error) {
	const period = 15 * time.Second
	scales, mapper, err := on.scales()
	if err != nil {
		return nil, err
	}
	versions := custom_metrics.NewAvailableAPIsGetter(on.client.Discovery())
	usage, err := resourcemetrics.NewForConfig(on.config)
	if err != nil {
		return nil, fmt.Errorf("client of metrics: %w", err)
	}
	external, err := external_metrics.NewForConfig(on.config)
	if err != nil {
		return nil, fmt.Errorf("client of external metrics: %w", err)
	}
	c := podautoscaler.NewHorizontalController(ctx, on.client.CoreV1(), scales, on.client.AutoscalingV2(), mapper,
		metrics.NewRESTMetricsClient(usage, custom_metrics.NewForConfig(on.config, mapper, versions), external),
		on.shared.Autoscaling().V2().HorizontalPodAutoscalers(), on.shared.Core().V1().Pods(),
		period, 5*time.Minute, 0.1, 5*time.Minute, 30*time.Second)
	return mapper.refreshing(func(ctx context.Context) {
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() { custom_metrics.PeriodicallyInvalidate(versions, period, ctx.Done()) })
		c.Run(ctx, workers)
	}), nil
}

func openDisruption(ctx context.Context, on cluster) (func(context.Context), error) {
	scales, mapper, err := on.scales()
	if err != nil {
		return nil, err
	}
	apps, core := on.shared.Apps().V1(), on.shared.Core().V1()
	c := disruption.NewDisruptionController(ctx, core.Pods(), on.shared.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
		apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), on.client, mapper, scales, on.client.Discovery())
	return mapper.refreshing(withWorkers(c.Run)), nil
}

// scales returns a client for the subresource scale of all kinds.
func (on cluster) scales() (scale.ScalesGetter, *mapper, error) {
	mapper := newMapper(on.client.Discovery())
	scales, err := scale.NewForConfig(on.config, mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(on.client.Discovery()))
	if err != nil {
		return nil, nil, fmt.Errorf("client of scales: %w", err)
	}
	return scales, mapper, nil
}

func openStatefulSets(ctx context.Context, on cluster) (func(context.Context), error) {
	apps, core := on.shared.Apps().V1(), on.shared.Core().V1()
	c := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(),
		apps.ControllerRevisions(), on.client)
	return withWorkers(c.Run), nil
}

func openCronJobs(ctx context.Context, on cluster) (func(context.Context), error) {
	batch := on.shared.Batch().V1()
	c, err := cronjob.NewControllerV2(ctx, batch.Jobs(), batch.CronJobs(), on.client)
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openTTLAfterFinished(ctx context.Context, on cluster) (func(context.Context), error) {
	return withWorkers(ttlafterfinished.New(ctx, on.shared.Batch().V1().Jobs(), on.client).Run), nil
}

func openEphemeralVolumes(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c, err := ephemeral.NewController(ctx, on.client, core.Pods(), core.PersistentVolumeClaims())
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openClaimProtection(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), on.client)
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openVolumeProtection(ctx context.Context, on cluster) (func(context.Context), error) {
	c, err := pvprotection.NewPVProtectionController(klog.FromContext(ctx), on.shared.Core().V1().PersistentVolumes(), on.client)
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openClassProtection(ctx context.Context, on cluster) (func(context.Context), error) {
	core := on.shared.Core().V1()
	c, err := vacprotection.NewVACProtectionController(klog.FromContext(ctx), on.client, core.PersistentVolumeClaims(),
		core.PersistentVolumes(), on.shared.Storage().V1().VolumeAttributesClasses())
	if err != nil {
		return nil, err
	}
	return withWorkers(c.Run), nil
}

func openServiceCIDRs(ctx context.Context, on cluster) (func(context.Context), error) {
	networking := on.shared.Networking().V1()
	return withWorkers(servicecidrs.NewController(ctx, networking.ServiceCIDRs(), networking.IPAddresses(), on.client).Run), nil
}

func withWorkers(run func(context.Context, int)) func(context.Context) {
	return func(ctx context.Context) { run(ctx, workers) }
}
