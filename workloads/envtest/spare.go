package envtest

import (
	"reflect"
	"time"

	"github.com/annexapi/annex/store/memory"
)

// settings are the settings of an environment's control plane.
type settings struct {
	likeCluster          bool
	controllers          []string
	timeout, stopTimeout time.Duration
}

// spare is the control plane of a fork that no test has asked for yet. A fork takes microseconds to copy its objects and a
// fraction of a second to start: the start is over when the next test asks.
type spare struct {
	revision uint64 // the newest of its objects
	settings settings
	started  chan struct{} // closed when server or err is set
	server   *server
	err      error
}

func startSpare(objects *memory.Store, authority *authority, with settings) *spare {
	p := &spare{revision: objects.Revision(), settings: with, started: make(chan struct{})}
	go func() {
		defer close(p.started)
		p.server, p.err = startServer(objects, authority, with)
	}()
	return p
}

// end waits for the start and stops the control plane.
func (p *spare) end() error {
	if <-p.started; p.err != nil {
		return nil // nothing is left running, and no fork has seen the error
	}
	return p.server.stop()
}

// fork returns a started control plane with the objects of s. After the second fork without a write between, it prepares the
// next one: a suite that writes to its base before each fork, or forks it once, would only pay for control planes that it never
// gets.
func (s *server) fork(with settings) (*server, error) {
	objects := s.objects.Fork()
	next, revision := objects.Fork(), objects.Revision()
	again := s.forked == revision
	s.forked = revision
	forked, err := s.takeSpare(revision, with)
	if err == nil && forked == nil {
		forked, err = startServer(objects, s.authority, with)
	}
	if err == nil && again {
		s.spare = startSpare(next, s.authority, with)
	}
	return forked, err
}

// takeSpare returns the spare if it has these objects and settings, and has started. Otherwise it returns nil, and there is no spare.
func (s *server) takeSpare(revision uint64, with settings) (*server, error) {
	p := s.spare
	if p == nil || p.revision != revision || !reflect.DeepEqual(p.settings, with) {
		return nil, s.endSpare()
	}
	s.spare = nil
	<-p.started
	return p.server, nil
}

func (s *server) endSpare() error {
	p := s.spare
	if p == nil {
		return nil
	}
	s.spare = nil
	return p.end()
}
