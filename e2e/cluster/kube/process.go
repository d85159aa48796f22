package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Program describes how to run a program that listens.
type Program struct {
	// Name is the name of its log.
	Name string
	Path string
	// Ports is the number of ports that it listens on. They are chosen at the first start and stay the same at later
	// ones.
	Ports int
	// Args returns its arguments, given its ports.
	Args func(ports []int) []string
	// Env is added to the environment.
	Env []string
	// Ready returns the reason why the program does not serve yet. It is called until it returns nil; a nil function
	// means that the program is ready at once.
	Ready func(ctx context.Context, ports []int) error
}

// Process is a program that runs, or ran and can be started again. Its methods are for one goroutine at a time,
// except Done and Tail.
type Process struct {
	program Program
	log     string
	ports   []int

	run *run
}

// run is one life of a process.
type run struct {
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // of its end, once done is closed
}

const (
	// startAttempts is the number of times that ports are chosen: another process may take a port between our check
	// and the program's start.
	startAttempts = 5
	retryInterval = 20 * time.Millisecond
	// ending is the time that a process has to end by itself.
	ending = 30 * time.Second
)

// Run starts a program and returns when it is ready, the program has ended, or ctx has. Its log is NAME.log in dir.
func Run(ctx context.Context, dir string, program Program) (*Process, error) {
	p := &Process{program: program, log: filepath.Join(dir, program.Name+".log")}
	for range startAttempts {
		ports, err := freePorts(program.Ports)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", program.Name, err)
		}
		p.ports = ports
		err = p.Start(ctx)
		if err == nil {
			return p, nil
		}
		if p.Running() || !strings.Contains(p.Tail(), "address already in use") {
			p.Kill()
			return nil, err
		}
	}
	return nil, fmt.Errorf("start %s: %d times another process took its ports", program.Name, startAttempts)
}

// Start restarts a process that has ended, with the same ports, and returns when it is ready. If it fails otherwise
// than by the program's end, the program still runs.
func (p *Process) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("start %s: it runs", p.program.Name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.program.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.program.Path, p.program.Args(p.ports)...)
	cmd.Env = append(os.Environ(), p.program.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	if p.run, err = start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.program.Name, err)
	}
	return p.awaitReady(ctx)
}

// start starts a command from a thread that lives as long as the process: the kernel counts the thread that started a
// process as its parent, and ends the process with it.
func start(cmd *exec.Cmd) (*run, error) {
	r := &run{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		if err == nil {
			r.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			r.err = cmd.Wait()
			close(r.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return r, nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.program.Ready == nil {
		return nil
	}
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		err := p.program.Ready(ctx, p.ports)
		if err == nil {
			return nil
		}
		select {
		case <-p.run.done:
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.program.Name, endOf(p.run), p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", p.program.Name, ctx.Err(), err, p.Tail())
		case <-retry.C:
		}
	}
}

func endOf(r *run) error {
	if r.err == nil {
		return errors.New("exit status 0")
	}
	return r.err
}

// Port returns the i-th of its ports.
func (p *Process) Port(i int) int { return p.ports[i] }

// PID returns the ID of the process in the operating system, or of its last life.
func (p *Process) PID() int { return p.run.pid }

// Done returns a channel that is closed when the process has ended. A restarted process has another one.
func (p *Process) Done() <-chan struct{} { return p.run.done }

// Running reports whether the process has been started and has not ended.
func (p *Process) Running() bool {
	if p.run == nil {
		return false
	}
	select {
	case <-p.run.done:
		return false
	default:
		return true
	}
}

// Stop asks the process to end and waits until it has. It fails if the process did not end in an orderly way within
// half a minute, and then kills it.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	_ = syscall.Kill(-p.run.pid, syscall.SIGTERM)
	select {
	case <-p.run.done:
	case <-time.After(ending):
		p.Kill()
		return fmt.Errorf("%s did not end within %s and was killed\n%s", p.program.Name, ending, p.Tail())
	}
	if p.run.err != nil {
		return fmt.Errorf("end of %s: %w\n%s", p.program.Name, p.run.err, p.Tail())
	}
	return nil
}

// Kill ends the process as kill -9 does, and waits until it has ended.
func (p *Process) Kill() {
	if !p.Running() {
		return
	}
	_ = syscall.Kill(-p.run.pid, syscall.SIGKILL)
	<-p.run.done
}

// Tail returns the end of its log.
func (p *Process) Tail() string {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-4000):])
}

// LogFile returns the file with the output of the process in all its lives.
func (p *Process) LogFile() string { return p.log }

// freePorts returns ports of the loopback address that no process listens on. They are outside of the range from
// which the kernel chooses ephemeral ports, so that a program gets its port again at a restart.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range 1000 {
		if len(ports) == count {
			return ports, nil
		}
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // not before all are found: they differ
		ports = append(ports, port)
	}
	return nil, errors.New("no free ports between 20000 and 30000")
}
