package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// until waits until a condition holds for a JenkinsService.
func (a *api) until(t *testing.T, name, what string, holds func(*autobusiv1alpha.JenkinsService) bool) *autobusiv1alpha.JenkinsService {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w, err := a.namespaced(a.Get()).Param("watch", "true").Param("fieldSelector", "metadata.name="+name).Watch(ctx)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for event := range w.ResultChan() {
			if j, ok := event.Object.(*autobusiv1alpha.JenkinsService); ok && event.Type != watch.Deleted && holds(j) {
				w.Stop()
				return j
			}
		}
	}
}

// running creates an approved JenkinsService, and waits until its instances run.
func (a *api) running(t *testing.T, name string, amount int32) {
	t.Helper()
	must(a.create(t.Context(), name, autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: amount, InstanceCPU: 2}))(t)
	must(a.approve(t.Context(), name, `{"decision":"Approved"}`))(t)
	a.until(t, name, "all run", func(j *autobusiv1alpha.JenkinsService) bool { return running(j) == int(amount) })
}

func (a *api) logs(name string, params ...string) *rest.Request {
	r := a.namespaced(a.Get()).Name(name).SubResource("logs")
	for i := 0; i < len(params); i += 2 {
		r.Param(params[i], params[i+1])
	}
	return r
}

// log returns a log. It does not use DoRaw, which would drop the message of an error.
func (a *api) log(ctx context.Context, name string, params ...string) (string, error) {
	stream, err := a.logs(name, params...).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	return string(text), err
}

// follow returns a reader of a log that is followed.
func (a *api) follow(t *testing.T, name string, params ...string) *bufio.Reader {
	t.Helper()
	stream, err := a.logs(name, append(params, "follow", "true")...).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	return bufio.NewReader(stream)
}

func wantLine(t *testing.T, from *bufio.Reader, want string) {
	t.Helper()
	if line, err := from.ReadString('\n'); err != nil || line != want+"\n" {
		t.Fatalf("%q, %v, want %q", line, err, want)
	}
}

func TestInstances_processesAndLogs(t *testing.T) {
	t.Parallel()
	a := newAPI(t, annextest.Start(t, server()))
	a.running(t, "j", 2)
	one := a.follow(t, "j", "container", "1")
	wantLine(t, one, "instance 1 of j starts, with 2 processors")
	for n := 1; n <= 2; n++ {
		wantLine(t, one, fmt.Sprintf("build %d is done", n))
	}
	if text := must(
		a.log(t.Context(), "j", "container", "1", "tailLines", "1", "timestamps", "true"),
	)(
		t,
	); !regexp.MustCompile(`^\S+Z build \d+ is done\n$`).
		MatchString(text) {
		t.Errorf("%q", text)
	}
	zero := a.follow(t, "j") // the first is the default
	wantLine(t, zero, "instance 0 of j starts, with 2 processors")
	for _, test := range []struct {
		code   int
		want   string
		params []string
	}{
		{400, "container 2 is not valid for jenkinsservices j: its instances are 0 to 1", []string{"container", "2"}},
		{400, "container 00 is not valid", []string{"container", "00"}},
		{400, "container -1 is not valid", []string{"container", "-1"}},
		{400, "container all is not valid", []string{"container", "all"}},
		{422, "tailLines: Invalid value: -1", []string{"tailLines", "-1"}},
		{400, "no log of a previous run", []string{"previous", "true"}},
	} {
		_, err := a.log(t.Context(), "j", test.params...)
		wantStatus(t, err, test.code, test.want)
	}

	// A followed log ends with its last line when its instance is drained.
	must(a.patch(t.Context(), "j", `{"spec":{"instanceamount":1}}`))(t)
	must(a.approve(t.Context(), "j", `{"decision":"Approved"}`))(t)
	rest, err := io.ReadAll(one)
	if err != nil || !strings.HasSuffix(string(rest), "instance 1 of j ends\nthe process has ended: exit status 0\n") {
		t.Errorf("%v: %q", err, rest)
	}
	a.until(t, "j", "one is drained", func(j *autobusiv1alpha.JenkinsService) bool { return picture(j) == "2+" })
	_, err = a.log(t.Context(), "j", "container", "1")
	wantStatus(t, err, 400, "container 1 is not valid for jenkinsservices j: its instances are 0 to 0")
	must(a.create(t.Context(), "none", small))(t)
	_, err = a.log(t.Context(), "none")
	wantStatus(t, err, 409, "it has no instances: it is Pending, and starts instances once it is approved: "+
		"kubectl annex approval jenkinsservices/none -n default --decision=Approved, or POST {\"decision\":\"Approved\"} to its "+
		"subresource approval")
	must(a.approve(t.Context(), "none", `{"decision":"Rejected"}`))(t)
	_, err = a.log(t.Context(), "none")
	wantStatus(t, err, 409, "it has no instances: it is Rejected")
	_, err = a.log(t.Context(), "missing")
	wantStatus(t, err, 404, `"missing" not found`)
}

func wantStatus(t *testing.T, err error, code int, want string) {
	t.Helper()
	status, ok := err.(apierrors.APIStatus)
	if !ok || int(status.Status().Code) != code || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %d with %q", err, code, want)
	}
}

func TestLogs_drained_areRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, annextest.Start(t, server()))
	a.running(t, "j", 1)
	must(a.patch(t.Context(), "j", `{"metadata":{"finalizers":["example.com/stay","autobusi.group.cicd/instances"]}}`))(t)
	if err := a.delete(t.Context(), "j"); err != nil {
		t.Fatal(err)
	}
	a.until(t, "j", "it is drained", func(j *autobusiv1alpha.JenkinsService) bool { return len(j.Status.Instances) == 0 })
	_, err := a.log(t.Context(), "j")
	wantStatus(t, err, 409, "it has no instances: it is being deleted, and drained")
	must(a.patch(t.Context(), "j", `{"metadata":{"finalizers":null}}`))(t)
}

// pidsOf returns the processes of a JenkinsService's instances.
func pidsOf(t *testing.T, service string) []int {
	t.Helper()
	var pids []int
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environments {
		raw, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(raw), "\x00NAME="+service+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func needsProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("processes are found in /proc")
	}
}

func TestInstances_exited_isRestarted(t *testing.T) {
	t.Parallel()
	needsProc(t)
	a := newAPI(t, annextest.Start(t, server()))
	name := fmt.Sprint("again-", os.Getpid())
	a.running(t, name, 1)
	log := a.follow(t, name)
	wantLine(t, log, "instance 0 of "+name+" starts, with 2 processors")
	w, err := a.namespaced(a.Get()).Param("watch", "true").Param("fieldSelector", "metadata.name="+name).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, pid := range pidsOf(t, name) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the shell and its children
	}
	if rest, err := io.ReadAll(log); err != nil || !strings.HasSuffix(string(rest), "the process has ended: signal: killed\n") {
		t.Errorf("%v: %q", err, rest)
	}
	var pictures []string
	for event := range w.ResultChan() {
		p := picture(event.Object.(*autobusiv1alpha.JenkinsService))
		if len(pictures) == 0 || pictures[len(pictures)-1] != p {
			pictures = append(pictures, p)
		}
		if len(pictures) == 3 {
			break
		}
	}
	if fmt.Sprint(pictures) != "[2+ 2- 2+]" {
		t.Errorf("%q", pictures)
	}
	if text := must(a.log(t.Context(), name, "previous", "true"))(t); !strings.HasSuffix(text, "the process has ended: signal: killed\n") {
		t.Errorf("previous: %q", text)
	}
	wantLine(t, a.follow(t, name), "instance 0 of "+name+" starts, with 2 processors")
}

func TestInstances_serverStops_restartWithNext(t *testing.T) {
	t.Parallel()
	needsProc(t)
	data := filepath.Join(t.TempDir(), "data")
	name := fmt.Sprint("restart-", os.Getpid())
	serve := func() (*process, *api) {
		p := startProgram(t, "serve", "--data-dir", data, "--secure-port", "0")
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		return p, newAPI(t, config)
	}
	p, a := serve()
	a.running(t, name, 3)
	if n := len(pidsOf(t, name)); n < 3 {
		t.Errorf("%d processes", n)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if left := pidsOf(t, name); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}

	p, a = serve()
	a.until(t, name, "all run again", func(j *autobusiv1alpha.JenkinsService) bool { return picture(j) == "2+ 2+ 2+" })
	wantLine(t, a.follow(t, name, "container", "2"), "instance 2 of "+name+" starts, with 2 processors")
	if _, err := exec.LookPath("setpriv"); err == nil { // Linux
		p.kill()
		for deadline := time.Now().Add(30 * time.Second); len(pidsOf(t, name)) > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("the server was killed, and processes are left: %v", pidsOf(t, name))
			}
		}
		p, a = serve()
		a.until(t, name, "all run once more", func(j *autobusiv1alpha.JenkinsService) bool {
			return picture(j) == "2+ 2+ 2+" && len(pidsOf(t, name)) >= 3
		})
	}
	if err := a.delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if left := pidsOf(t, name); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestLogs_otherProcess_areUnavailable(t *testing.T) {
	t.Parallel()
	a := newAPI(t, annextest.StartWith(t, server(), annex.Options{Storage: memory.Storage(), Controllers: []string{}}))
	must(a.create(t.Context(), "j", small))(t)
	must(a.patch(t.Context(), "j", `{"status":{"instances":[{"cpu":1,"running":true},{"cpu":1,"running":false}]}}`, "status"))(t)
	_, err := a.log(t.Context(), "j")
	wantStatus(t, err, 503, "instance 0 of j runs where the controllers of this server run, which is another process: ask that")
	_, err = a.log(t.Context(), "j", "container", "1")
	wantStatus(t, err, 409, "instance 1 has not started")
}

func TestInstances_stubborn_isKilled(t *testing.T) {
	t.Parallel()
	s := new(instances)
	ended := make(chan struct{})
	if err := s.open(nil); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
	cmd.SysProcAttr = child()
	cmd.SysProcAttr.Setpgid = true
	r, w := io.Pipe()
	copied, err := startCopying(cmd, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantLine(t, bufio.NewReader(r), "ready")
	i := &instance{process: cmd.Process, ended: ended}
	s.mu.Lock()
	s.end(i)
	s.end(i) // once is enough
	s.mu.Unlock()
	begun := time.Now()
	err = cmd.Wait()
	killGroup(cmd.Process.Pid)
	copied()
	close(ended)
	if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), "killed") || took < instanceGrace/2 {
		t.Errorf("%v after %s", err, took)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
