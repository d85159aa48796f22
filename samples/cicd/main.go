// Command cicd serves API groups under group.cicd.
//
// +annex:domain=group.cicd
package main

import (
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/stream"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

func main() {
	ctrl.SetLogger(klog.Background())
	program.Main(server())
}

// server returns the definition of the server, for the program and its tests. annex create
// api adds a line for each kind.
func server() annex.Server {
	processes := new(instances)
	return annex.Server{
		Name: "cicd",
		Groups: []annex.Group{
			{
				Name: "autobusi.group.cicd",
				Kinds: []annex.Kind{
					annex.KindOf[autobusiv1alpha.JenkinsService, autobusiv1alpha.JenkinsServiceList]("jenkinsservices", autobusiv1alpha.API).
						ShortNames("js").
						Columns(jenkinsServiceColumns...).
						PrepareForCreate(prepareJenkinsServiceForCreate).
						PrepareForUpdate(prepareJenkinsServiceForUpdate).
						Subresources(
							annex.Action("approval", approvalJenkinsService),
							stream.Logs("logs", processes.logsJenkinsService),
							stream.Exec("exec", processes.execJenkinsService).Check(processes.checkExecJenkinsService),
						).
						Admit(admitJenkinsService).
						AdmitCreate(admitJenkinsServiceCreate),
				},
			},
		},
		Controllers: []annex.Controller{
			{Name: "jenkinsservice", Run: processes.runJenkinsServiceController},
		},
	}
}
