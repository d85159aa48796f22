package main

import "path"

// suite is a part of a project's tests.
type suite struct {
	module, version string
	// packages are patterns of the go command. Packages without tests are no part of the suite.
	packages []string
	// without is a regular expression for packages that are left out.
	without string
	// skip is a regular expression for names of tests that are left out, each with its reason at the suite.
	skip string
	// clusterSkip are regular expressions for names of specs of Ginkgo that expect what no cluster does, and are left out for
	// like-cluster, by the end of the package's path.
	clusterSkip map[string]string
	// drop has modules that the project replaces by folders which the module's archive does not have. Their required versions
	// are used instead.
	drop []string
	// scaffold has command lines of the module's program, which make the project in an empty folder.
	scaffold []string
}

func (s suite) name() string {
	name := path.Base(s.module)
	switch name {
	case "runtime", "ssa":
		name = "flux " + name
	case "v4":
		name = "kubebuilder project-v4"
	}
	return name + " " + s.version
}

// suites is the table. Each suite is the part of the project's tests that starts servers by envtest. The tests of gateway-api are
// missing: they download a kube-apiserver into a new folder, whatever there is.
var suites = []suite{
	{
		// pkg/client/apiutil downloads older releases of kube-apiserver by itself, from the internet.
		module: "sigs.k8s.io/controller-runtime", version: "v0.25.2", packages: []string{"./..."},
		without: `/(examples|pkg/client/apiutil|tools)(/|$)`,
		// Each namespace of a cluster has a service account and the ConfigMap kube-root-ca.crt, and a deleted namespace goes. The specs
		// from NamespacedClient on call deleteNamespace, which finalizes the namespace itself and fails if a controller was faster.
		clusterSkip: map[string]string{
			"/pkg/cache": "list serviceaccounts and find exactly one",
			"/pkg/client": "ConsistentClient .* write then read|NamespacedClient List|filter results by namespace selector|" +
				"not update any object from other namespace|not modify an object from a different namespace|" +
				"not delete deployments in other namespaces|log warnings with config.WarningHandler",
		},
	},
	{
		// The projects in testdata are modules of their own, which the module proxy does not have. These commands make most of
		// project-v4 anew, as test/testdata/generate.sh does.
		module: "sigs.k8s.io/kubebuilder/v4", version: "v4.16.0", packages: []string{"./api/...", "./cmd/...", "./internal/..."},
		scaffold: []string{
			"init --domain testproject.org --repo sigs.k8s.io/kubebuilder/testdata/project-v4 --skip-go-version-check",
			"create api --group crew --version v1 --kind Captain --controller --resource --make=false",
			"create webhook --group crew --version v1 --kind Captain --defaulting --programmatic-validation --make=false",
			"create api --group crew --version v1 --kind FirstMate --controller --resource --make=false",
			"create api --group crew --version v2 --kind FirstMate --controller=false --resource --make=false",
			"create webhook --group crew --version v1 --kind FirstMate --conversion --spoke v2 --make=false",
			"create api --group crew --version v1 --kind Admiral --plural admirales --namespaced=false --controller --resource --make=false",
			"create webhook --group crew --version v1 --kind Admiral --plural admirales --defaulting --programmatic-validation --make=false",
			"create webhook --group core --version v1 --kind Pod --defaulting --make=false",
			"create webhook --group apps --version v1 --kind Deployment --defaulting --programmatic-validation --make=false",
			"create api --group crew --version v1 --kind Navigator --controller --resource --ssa --make=false",
		},
	},
	{
		module: "github.com/fluxcd/pkg/ssa", version: "v0.78.0", packages: []string{"./..."},
	},
	{
		module: "github.com/fluxcd/pkg/runtime", version: "v0.117.0",
		packages: []string{"./acl", "./cel", "./client", "./controller", "./events", "./patch", "./secrets"},
		drop: []string{
			"github.com/fluxcd/pkg/apis/acl", "github.com/fluxcd/pkg/apis/event",
			"github.com/fluxcd/pkg/apis/kustomize", "github.com/fluxcd/pkg/apis/meta",
		},
	},
	{
		// Four specs of controllers/ray fail against kube-apiserver 1.37 as well.
		module: "github.com/ray-project/kuberay/ray-operator", version: "v1.5.0",
		packages: []string{"./controllers/...", "./pkg/webhooks/..."},
	},
	{
		// test/integration/scheduling is for a cluster with nodes. One spec fails against kube-apiserver 1.37 as well: "should create
		// two PVC with Delete and Retain policies".
		module: "sigs.k8s.io/jobset", version: "v0.11.1", packages: []string{"./test/integration/controller", "./test/integration/webhook"},
	},
	{
		// Three specs of test/integration/controllers fail against a fast server, and pass if the suite sleeps: "resize" reads a
		// StatefulSet that a controller is about to patch, and two delete a pod that has no node and expect the controller to see it
		// while it is Terminating, which it is between two writes of one request.
		module: "sigs.k8s.io/lws", version: "v0.8.0", packages: []string{"./test/integration/..."},
	},
	{
		// Two cases of Test_validate fail against kube-apiserver 1.37 as well, whose messages name the type of the value.
		module: "sigs.k8s.io/cluster-api", version: "v1.11.3",
		packages: []string{
			"./bootstrap/kubeadm/internal/controllers", "./bootstrap/util", "./controllers/clustercache", "./controllers/crdmigrator",
			"./exp/internal/controllers", "./exp/runtime/internal/controllers", "./internal/controllers/...", "./internal/util/ssa",
			"./internal/webhooks/test", "./util/collections", "./util/patch",
		},
	},
}
