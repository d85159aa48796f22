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
	{"needs a controller that binds claims to volumes", `volume attributes class scope`},
	{
		"needs nodes: it creates as many pods as they can run",
		`Garbage collector.*(orphan pods created by rc|keep the rc around|dependents that have both valid owner)`,
	},
	{"needs nodes, or SSH to them", `Etcd failure|kube-apiserver identity|metadata details across all namespaces for nodes`},
	{"upstream calls it flaky", `\[Flaky\]`},
	{"needs a feature that is off by default", `CoordinatedLeaderElection|StorageVersionAPI`},
	{"asks for hooks of kube-apiserver by their names, such as that of service addresses", `health handlers`},
}
