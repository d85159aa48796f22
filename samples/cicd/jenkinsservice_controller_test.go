package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// picture formats instances: 2+ has two processors and runs, 2- does not run.
func picture(j *autobusiv1alpha.JenkinsService) string {
	var all []string
	for _, i := range j.Status.Instances {
		sign := "-"
		if i.Running {
			sign = "+"
		}
		all = append(all, fmt.Sprint(i.CPU, sign))
	}
	return strings.Join(all, " ")
}

func TestNextStep_oneAfterAnother(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		approval  autobusiv1alpha.ApprovalStatus
		deleted   bool
		instances string
		steps     []string // their course, for two desired instances with 2 processors each
	}{
		"pending":                {approval: autobusiv1alpha.Pending},
		"pending, once approved": {approval: autobusiv1alpha.Pending, instances: "1+ 1-", steps: []string{"1+ 1+"}},
		"nothing said":           {},
		"approved":               {approval: autobusiv1alpha.Approved, steps: []string{"2- 2-", "2+ 2-", "2+ 2+"}},
		"approved and there":     {approval: autobusiv1alpha.Approved, instances: "2+ 2+"},
		"fewer":                  {approval: autobusiv1alpha.Approved, instances: "2+ 2+ 2- 2+", steps: []string{"2+ 2+ 2- 2-", "2+ 2+"}},
		"more":                   {approval: autobusiv1alpha.Approved, instances: "2+", steps: []string{"2+ 2-", "2+ 2+"}},
		"other processors": {approval: autobusiv1alpha.Approved, instances: "1+ 1+",
			steps: []string{"1- 1+", "2- 1+", "2+ 1+", "2+ 1-", "2+ 2-", "2+ 2+"}},
		"rejected":                {approval: autobusiv1alpha.Rejected},
		"rejected, once approved": {approval: autobusiv1alpha.Rejected, instances: "1+ 1+", steps: []string{"1+ 1-", "1- 1-", ""}},
		"deleted": {approval: autobusiv1alpha.Approved, deleted: true, instances: "2+ 2+ 2-",
			steps: []string{"2+ 2- 2-", "2- 2- 2-", ""}},
		"deleted before it began":  {approval: autobusiv1alpha.Approved, deleted: true},
		"deleted while it pended":  {approval: autobusiv1alpha.Pending, deleted: true, instances: "1+", steps: []string{"1-", ""}},
		"deleted, nothing running": {approval: autobusiv1alpha.Approved, deleted: true, instances: "2- 2-", steps: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &autobusiv1alpha.JenkinsService{Spec: autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 2, InstanceCPU: 2}}
			j.Status.ApprovalStatus = test.approval
			if test.deleted {
				j.DeletionTimestamp = &metav1.Time{}
			}
			for _, drawn := range strings.Fields(test.instances) {
				var i autobusiv1alpha.JenkinsInstance
				if _, err := fmt.Sscanf(drawn, "%d", &i.CPU); err != nil {
					t.Fatal(err)
				}
				i.Running = strings.HasSuffix(drawn, "+")
				j.Status.Instances = append(j.Status.Instances, i)
			}
			var steps []string
			for len(steps) < 20 {
				next, number := nextStep(j, 0)
				if next == nothing {
					break
				}
				if next != writeStatus {
					j.Status.Instances[number].Running = next == startInstance
				}
				steps = append(steps, picture(j))
			}
			if fmt.Sprint(steps) != fmt.Sprint(test.steps) {
				t.Errorf("from [%s]: %q, want %q", test.instances, steps, test.steps)
			}
		})
	}
}

// story follows an approved JenkinsService from its creation to its end, and fails the test unless its instances
// start and stop one after another.
func story(t *testing.T, a *api) {
	t.Helper()
	ctx := t.Context()
	w := a.watch(t)
	must(a.create(ctx, "j", autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 3, InstanceCPU: 2}))(t)
	must(a.approve(ctx, "j", `{"decision":"Approved"}`))(t)
	var pictures []string
	for event := range w.ResultChan() {
		j, ok := event.Object.(*autobusiv1alpha.JenkinsService)
		if !ok {
			t.Fatalf("%s: %v", event.Type, event.Object)
		}
		if p := picture(j); len(pictures) == 0 || pictures[len(pictures)-1] != p {
			pictures = append(pictures, p)
		}
		if running(j) == 3 && j.DeletionTimestamp == nil {
			if j.Generation != 1 || len(j.Finalizers) != 1 || j.Finalizers[0] != instancesFinalizer {
				t.Errorf("running, with generation %d and finalizers %v", j.Generation, j.Finalizers)
			}
			if err := a.delete(ctx, "j"); err != nil {
				t.Fatal(err)
			}
		}
		if event.Type == watch.Deleted {
			break
		}
	}
	want := []string{"", "2- 2- 2-", "2+ 2- 2-", "2+ 2+ 2-", "2+ 2+ 2+", "2+ 2+ 2-", "2+ 2- 2-", "2- 2- 2-", ""}
	if fmt.Sprint(pictures) != fmt.Sprint(want) {
		t.Errorf("instances were\n%q, want\n%q", pictures, want)
	}
}

func TestController_inServer(t *testing.T) {
	t.Parallel()
	story(t, newAPI(t, annextest.Start(t, server())))
}

func TestController_ownProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	config := annextest.StartWith(t, server(), annex.Options{Storage: memory.Storage(), DataDir: dir, Controllers: []string{}})
	p := startProgram(t, "controllers", "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--leader-elect=false")
	defer p.kill()
	story(t, newAPI(t, config))
}

// process is the sample as a process.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
}

// startProgram starts it and waits for its first line.
func startProgram(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	// A killed program leaves the folder of its instances.
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+t.TempDir())
	log := &strings.Builder{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t, cmd}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		p.kill()
		t.Fatalf("%v ended: %v\n%s", args, err, log)
	}
	return p
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
