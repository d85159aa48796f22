// Command foreign serves a type of Kubernetes' own under another group. The facts that it
// imports are generated before it is built, as a user would generate them.
package main

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/e2e/testdata/foreign/apps"
	"github.com/annexapi/annex/program"
)

func main() {
	program.Main(annex.Server{Name: "foreign", Groups: []annex.Group{{
		Name:  "apps.example.com",
		Kinds: []annex.Kind{annex.KindOf[appsv1.Deployment, appsv1.DeploymentList]("deployments", apps.API)},
	}}})
}
