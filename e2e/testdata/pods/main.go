// Command pods serves pods that are processes beside it, as programs that know nothing but pods
// see them: commands run in them, their ports are the host's, and their log is what was said of them.
// The facts that it imports are generated before it is built, as a user would generate them.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/e2e/shell"
	"github.com/annexapi/annex/e2e/testdata/pods/core"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/stream"
)

func main() {
	program.Main(annex.Server{Name: "pods", Groups: []annex.Group{{Kinds: []annex.Kind{
		annex.KindOf[corev1.Pod, corev1.PodList]("pods", core.API).
			ShortNames("po").
			PrepareForCreate(run).
			Subresources(
				stream.Exec("exec", shell.Exec[corev1.Pod]).Containers(containers),
				stream.Attach("attach", shell.Attach[corev1.Pod]).Containers(containers),
				stream.Logs("log", shell.Log[corev1.Pod]).Containers(containers),
				stream.PortForward("portforward", shell.Dial[corev1.Pod]),
			),
	}}}})
}

// run makes a pod one that runs, as a kubelet would: clients look at that first.
func run(_ context.Context, pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Ready: true})
	}
}

func containers(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	return names
}
