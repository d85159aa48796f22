package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/stream"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

const (
	// instanceScript is the program of an instance: it logs its work, and exits on SIGTERM.
	instanceScript = `trap 'echo "instance $INSTANCE of $NAME ends"; exit 0' TERM
echo "instance $INSTANCE of $NAME starts, with $CPU processors"
n=0
while :; do
  n=$((n+1)); echo "build $n is done"
  sleep 1 & wait $!
done`

	// instanceGrace bounds the time from SIGTERM to SIGKILL.
	instanceGrace = 5 * time.Second

	// podVolume is the only writable directory of a pod with the workload that the verb manifests writes.
	podVolume = "/var/lib/annex"

	// An instance that exits by itself is restarted after firstBackoff, which doubles with each failure. A run longer
	// than maxBackoff resets the backoff.
	firstBackoff = time.Second
	maxBackoff   = time.Minute
)

// instances are the processes of all JenkinsServices. They are children of the process with the running controller,
// usually the server, and end with the controller.
type instances struct {
	mu  sync.Mutex
	dir string // of their folders; empty while no controller runs in this process
	all map[instanceKey]*instance
	// changed is called for a JenkinsService whose instances have changed by themselves.
	changed func(service types.NamespacedName)
}

// instanceKey identifies an instance. A JenkinsService that is created again has other instances.
type instanceKey struct {
	service types.UID
	number  int
}

// instance is an instance, with its process if it runs.
type instance struct {
	service types.NamespacedName
	number  int
	dir     string
	env     []string
	logs    *stream.LogFiles

	// The mutex of instances guards the fields below.
	process  *os.Process // nil if it does not run
	started  time.Time
	stopping bool          // it is being stopped
	ended    chan struct{} // closed when the process has ended
	failures int           // in a row
	notUntil time.Time
}

// open permits instances to start. Their folders and logs are temporary.
func (s *instances) open(changed func(types.NamespacedName)) error {
	const pattern = "cicd-instances-"
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		if dir, err = os.MkdirTemp(podVolume, pattern); err != nil {
			return errors.Join(fmt.Errorf("a folder for instances, in %s or %s", os.TempDir(), podVolume), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir, s.changed, s.all = dir, changed, map[instanceKey]*instance{}
	return nil
}

// close stops all instances, and removes their folders.
func (s *instances) close() error {
	s.mu.Lock()
	var ended []<-chan struct{}
	for _, i := range s.all {
		ended = append(ended, s.end(i))
	}
	dir := s.dir
	s.dir, s.all, s.changed = "", nil, func(types.NamespacedName) {}
	s.mu.Unlock()
	for _, e := range ended {
		<-e
	}
	return os.RemoveAll(dir)
}

// runs reports whether an instance runs.
func (s *instances) runs(service types.UID, number int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.all[instanceKey{service, number}]
	return i != nil && i.process != nil
}

// start starts an instance. If the instance has failed recently, start returns the time to wait instead.
func (s *instances) start(j *autobusiv1alpha.JenkinsService, number int) (wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		return 0, errors.New("no instances are started any more")
	}
	key := instanceKey{j.UID, number}
	i := s.all[key]
	if i == nil {
		i = &instance{
			service: types.NamespacedName{Namespace: j.Namespace, Name: j.Name},
			number:  number,
			dir:     filepath.Join(s.dir, string(j.UID), fmt.Sprint(number)),
		}
		if err := os.MkdirAll(i.dir, 0o700); err != nil {
			return 0, err
		}
		if i.logs, err = stream.OpenLogFiles(i.dir+".log", stream.LogFilesOptions{MaxFileBytes: 1 << 20, MaxFiles: 3}); err != nil {
			return 0, err
		}
		s.all[key] = i
	}
	if i.process != nil {
		return 0, nil
	}
	if wait := time.Until(i.notUntil); wait > 0 {
		return wait, nil
	}
	i.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + i.dir, "NAMESPACE=" + j.Namespace, "NAME=" + j.Name,
		fmt.Sprint("INSTANCE=", number), fmt.Sprint("CPU=", j.Status.Instances[number].CPU),
	}
	return 0, s.run(i)
}

// run starts the process of an instance, and a goroutine that waits for its end. The caller holds the mutex.
func (s *instances) run(i *instance) error {
	log, err := i.logs.Begin()
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", instanceScript)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = i.dir, i.env, child()
	cmd.SysProcAttr.Setpgid = true
	copied, err := startCopying(cmd, log, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("start instance %d of %s: %w", i.number, i.service, err), log.Close())
	}
	i.process, i.started, i.stopping, i.ended = cmd.Process, time.Now(), false, make(chan struct{})
	ended := i.ended
	go func() {
		err := cmd.Wait()
		killGroup(cmd.Process.Pid)
		copied()
		fmt.Fprintf(log, "the process has ended: %v\n", cmd.ProcessState) // best effort, as all lines
		if err := errors.Join(log.Close()); err != nil {
			klog.Background().Error(err, "The log of an instance is not complete", "service", i.service, "instance", i.number)
		}
		s.mu.Lock()
		i.process = nil
		if !i.stopping {
			s.failed(i, err)
		}
		changed := s.changed
		s.mu.Unlock()
		close(ended)
		changed(i.service)
	}()
	return nil
}

// failed sets the backoff of the next start. The caller holds the mutex.
func (s *instances) failed(i *instance, err error) {
	if time.Since(i.started) > maxBackoff {
		i.failures = 0
	}
	backoff := min(firstBackoff<<min(i.failures, 10), maxBackoff)
	i.failures++
	i.notUntil = time.Now().Add(backoff)
	klog.Background().Info("An instance has ended by itself", "service", i.service, "instance", i.number, "reason", err, "backoff", backoff)
}

// stop stops an instance, and does not wait for its end.
func (s *instances) stop(service types.UID, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.all[instanceKey{service, number}]; i != nil {
		s.end(i)
	}
}

// end stops the process of an instance, by SIGKILL after instanceGrace, and returns a channel that is closed at its
// end. The caller holds the mutex.
func (s *instances) end(i *instance) <-chan struct{} {
	if i.process == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	if ended, pid := i.ended, i.process.Pid; !i.stopping {
		i.stopping = true
		_ = syscall.Kill(-pid, syscall.SIGTERM) // it may have ended
		go func() {
			grace := time.NewTimer(instanceGrace)
			defer grace.Stop()
			select {
			case <-ended:
			case <-grace.C:
				killGroup(pid)
			}
		}()
	}
	return i.ended
}

// forget removes the folders of stopped instances from a number on.
func (s *instances) forget(service types.UID, from int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, i := range s.all {
		if key.service == service && key.number >= from && i.process == nil {
			delete(s.all, key)
			if err := errors.Join(os.RemoveAll(i.dir), os.RemoveAll(i.dir+".log")); err != nil {
				klog.Background().Error(err, "The folder of an instance is left", "service", i.service, "instance", i.number)
			}
		}
	}
}

// startCopying starts a command and returns a function that waits until its whole output is written. Without stderr,
// all output goes to stdout. If a writer fails, the rest of its output is discarded: a full disk must not end an
// instance.
func startCopying(cmd *exec.Cmd, stdout, stderr io.Writer) (wait func(), err error) {
	var copies sync.WaitGroup
	var opened []*os.File
	pipe := func(to io.Writer) (*os.File, func(), error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		opened = append(opened, r, w)
		return w, func() {
			copies.Go(func() {
				defer r.Close()
				_, _ = io.Copy(to, r)
				_, _ = io.Copy(io.Discard, r)
			})
		}, nil
	}
	closeAll := func() {
		for _, f := range opened {
			_ = f.Close() // nothing was written
		}
	}
	out, copyOut, err := pipe(stdout)
	if err != nil {
		return nil, err
	}
	errs, copyErrs := out, func() {}
	if stderr != nil {
		if errs, copyErrs, err = pipe(stderr); err != nil {
			closeAll()
			return nil, err
		}
	}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		closeAll()
		return nil, err
	}
	copyOut()
	copyErrs()
	_ = out.Close() // the command has its own copy
	_ = errs.Close()
	return copies.Wait, nil
}

// killGroup kills a process and all processes in its group.
func killGroup(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // there may be none left
}
