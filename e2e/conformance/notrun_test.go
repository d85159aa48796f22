package conformance

// notRun are the tests that run against neither server, by regular expressions for their names. Each has its reason;
// the first matching entry counts.
var notRun = []struct{ reason, pattern string }{
	{"needs pods that run: the webhook of the test is one", `AdmissionWebhook|CustomResourceConversionWebhook|CustomResourceFieldSelectors`},
	{
		"needs pods that run: the API server of the test is one",
		`Aggregator Should|Aggregated APIServer|remain compatible with the 1.17 sample-apiserver`,
	},
	{
		"needs pods that run: it deletes them",
		`Generated clientset should create pods|all pods are removed when a namespace|OrderedNamespaceDeletion`,
	},
	{
		"needs pods or controllers of workloads, whose objects are collected",
		`Garbage collector.*(pods|rc around|created by deployment|dependents that have both|dependency circle|cronjob)`,
	},
	{"needs nodes, or SSH to them", `Etcd failure|kube-apiserver identity|metadata details across all namespaces for nodes`},
	{"upstream calls it flaky", `\[Flaky\]`},
	{"needs a feature that is off by default", `CoordinatedLeaderElection|StorageVersionAPI`},
	{"no kind persistentvolumeclaims", `life of a persistent volume claim|volume attributes class`},
	{
		"no kind pods",
		`Table transformation should return pod details|ServerSideApply should (create an applied object|work for subresources)`,
	},
	{"no kind pods", `ResourceQuota.*(life of a pod|scope)`},
	{"no services but those of type ExternalName", `life of a service|services are removed when a namespace`},
	{"no kind replicationcontrollers", `life of a replication controller`},
	{"no kind replicasets.apps", `life of a replica set`},
	{"no kind resourceclaims.resource.k8s.io", `life of a ResourceClaim`},
	{"no kind cronjobs.batch", `v1 cronJobs`},
	{"no kind deployments.apps", `ServerSideApply should (remove a field|not remove a field|ignore conflict|give up ownership)`},
	{"no kind deployments.apps", `FieldValidation should detect unknown (and duplicate fields|metadata fields) of a typed object`},
	{"no kind deployments.apps", `AdmissionPolicy.*(a Deployment|should type check validation expressions|refer variables)`},
	{
		"no kind deployments.apps",
		`should support aggregated discovery interface( \[|$)|raw aggregated discovery endpoint Accept headers|groupVersion and a resource ` +
			`within each APIGroup|determine present and missing resources`,
	},
	{"asks for hooks of kube-apiserver by their names, such as that of service addresses", `health handlers`},
}
