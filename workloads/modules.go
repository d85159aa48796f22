//go:build modules

package workloads

// k8s.io/kubernetes requires its staging modules at v0.0.0, a version that does not exist. This module requires each of them at
// the version that belongs to it, so that go mod tidy works in a module that requires this one: it looks at tests of
// k8s.io/kubernetes, too. No package imports the modules below, and go mod tidy keeps them because this file does.
import (
	_ "k8s.io/cli-runtime"
	_ "k8s.io/cluster-bootstrap"
	_ "k8s.io/code-generator"
	_ "k8s.io/cri-api"
	_ "k8s.io/cri-streaming"
	_ "k8s.io/externaljwt"
	_ "k8s.io/sample-apiserver/pkg/apis/wardle"
)
