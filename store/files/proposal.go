package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// Proposal is what a person has made of the file of one object.
type Proposal struct {
	// Key is that of the object, and Path the file's, for people.
	Key  string
	Path string
	// Document is what the file says, in JSON and with the namespace that its
	// directory stands for. It is nil if the file was removed.
	Document []byte

	name  string
	hash  digest
	stamp stamp
	more  bool // the document says more than what people write
	says  atomic.Pointer[[]byte]
	used  atomic.Bool // by a record
	busy  atomic.Bool // a write came first, or another edit
}

// Deleted reports whether the file was removed.
func (p *Proposal) Deleted() bool { return p.Document == nil }

// isOf reports whether it is of a file. A nil one is of none.
func (p *Proposal) isOf(name string) bool { return p != nil && p.name == name }

// Accept returns the context for the write that carries the proposal out. The file
// stays as it is if the object then written says what says does: the document,
// encoded as it would be stored, with defaults filled in. Nil means that it does
// not, and the file is written anew.
func (p *Proposal) Accept(ctx context.Context, says []byte) context.Context {
	p.says.Store(&says)
	return context.WithValue(ctx, proposalKey{}, p)
}

type proposalKey struct{}

// agrees reports whether the person's file says what would be written in its place.
func (p *Proposal) agrees(want digest, r *Resource) bool {
	says := p.says.Load()
	if p.Deleted() || p.more || says == nil || *says == nil {
		return false
	}
	content, ok := render(*says, r)
	return ok && digestOf(content) == want
}

// Decide carries a proposal out, or says why not. An error that matches ErrBroken
// stands until the file changes; after any other one the proposal is made again
// soon. If nothing had to be written, nil means that the file may be brought in line
// with the object.
type Decide func(ctx context.Context, p *Proposal) error

// ErrBroken marks what is wrong with a file itself.
var ErrBroken = errors.New("broken file")

// brokenError is a reason that is for people to see, without the mark's own text.
type brokenError struct{ error }

func (e brokenError) Is(target error) bool { return target == ErrBroken }
func (e brokenError) Unwrap() error        { return e.error }

// Broken marks an error as the file's.
func Broken(err error) error { return brokenError{err} }

// Permit implements journal.Guarded: a record must not go over an edit that has not
// become a record itself.
func (j *Journal) Permit(ctx context.Context, record journal.Record) error {
	j.mu.Lock()
	j.permitted = nil
	j.mu.Unlock()
	at, placed := j.layout.place(record.Key)
	if !placed {
		return nil
	}
	p, _ := ctx.Value(proposalKey{}).(*Proposal)
	if p != nil && (p.Key != record.Key || p.used.Load()) {
		p = nil
	}
	j.mu.Lock()
	queued := j.queued[record.Key] > 0
	e := j.entries[record.Key]
	touched := e != nil && e.touched
	if p != nil && queued && e != nil {
		e.touched = true
	}
	j.mu.Unlock()
	switch {
	case p == nil && queued && touched:
		return j.refusal(j.pathOf(e)) // or writes without end would keep it waiting
	case p == nil && queued:
		return nil // the committer looks again
	case queued:
		p.busy.Store(true)
		return fmt.Errorf("the object of %s is being written", p.Path)
	case p != nil:
		if err := j.stands(p); err != nil {
			return err
		}
		j.mu.Lock()
		j.permitted = p
		j.mu.Unlock()
		return nil
	}
	return j.mayWrite(e, at)
}

// stands checks that the file is still as the proposal says.
func (j *Journal) stands(p *Proposal) error {
	info, err := j.files.Stat(p.name)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && p.Deleted():
		return nil
	case err == nil && !p.Deleted() && stampOf(info).same(p.stamp) && !p.stamp.racy(time.Now()):
		return nil
	case err == nil && !p.Deleted() && info.Mode().IsRegular():
		if _, hash, err := j.hash(p.name); err == nil && hash == p.hash {
			return nil
		}
	}
	p.busy.Store(true)
	j.look(p.name)
	return fmt.Errorf("%s has been changed again", p.Path)
}

// mayWrite checks that nobody has touched the object file of an entry, or of one
// that does not exist yet.
func (j *Journal) mayWrite(e *entry, at place) error {
	own := j.pathOf(e)
	for _, suffix := range []string{yamlSuffix, binarySuffix} {
		name := at.stem + suffix
		if name != own && own != "" && suffix == binarySuffix {
			continue
		}
		verdict, err := j.compare(e, name, true)
		if err != nil {
			return fmt.Errorf("%s: %w", j.path(name), err)
		}
		switch verdict {
		case asKnown, absent:
		case behind:
			if err := j.adopt(e, name); err != nil {
				return err
			}
		default:
			return j.refusal(name)
		}
	}
	return nil
}

// refusal is why an object cannot be written while its file says something else.
func (j *Journal) refusal(name string) error {
	j.mu.Lock()
	problem := j.problems[name]
	j.mu.Unlock()
	if problem != nil {
		return fmt.Errorf("its file %s cannot be read (%s): mend or remove it", j.path(name), problem.reason)
	}
	j.look(name)
	return fmt.Errorf("its file %s has been changed and is about to be read: try again", j.path(name))
}

// verdict is how a file compares with what is known.
type verdict int

const (
	absent  verdict = iota // it is not there and should not be
	asKnown                // it is as the server, or an accepted edit, left it
	behind                 // it is as a crash in the middle of a write may have left it
	removed                // it should be there and is not
	edited                 // it is something else
)

// compare looks at the file of an entry, which is nil if there is none. The stamp is
// enough unless thorough.
func (j *Journal) compare(e *entry, name string, thorough bool) (verdict, error) {
	var was entry
	if e != nil {
		j.mu.Lock()
		was = *e
		j.mu.Unlock()
	}
	own := e != nil && was.path() == name
	info, err := j.files.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		switch {
		case !own:
			return absent, nil
		case !was.settled:
			// A rename that was torn in half may have taken what was there before.
			return behind, nil
		}
		return removed, nil
	}
	if err != nil {
		return edited, err
	}
	if !own || !info.Mode().IsRegular() {
		return edited, nil
	}
	s := stampOf(info)
	if was.settled && s.same(was.stamp) && (!thorough || !s.racy(time.Now())) {
		return asKnown, nil
	}
	_, hash, err := j.hash(name)
	if err != nil {
		return edited, err
	}
	switch {
	case hash == was.object.SHA256:
		j.mu.Lock()
		if e.object.SHA256 == hash {
			e.stamp, e.settled = s, true
		}
		j.mu.Unlock()
		return asKnown, nil
	case !was.settled && hash == was.object.Replaces:
		return behind, nil
	}
	return edited, nil
}

// pathOf is the path of an entry's object file; empty if there is no entry or file.
func (j *Journal) pathOf(e *entry) string {
	if e == nil {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return e.path()
}

// adopt takes an object file that a crash kept from being written for what it is, so
// that the next operation replaces it. There must be one: if the journal has failed, it
// does nothing.
func (j *Journal) adopt(e *entry, name string) error {
	info, err := j.files.Stat(name)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.errLocked(); err != nil {
		return err
	}
	e.settled, e.behind = true, true
	if err != nil {
		e.object = object{}
		return nil
	}
	e.object = object{Suffix: e.object.Suffix, SHA256: e.object.Replaces}
	e.stamp = stampOf(info)
	return nil
}

// conform brings the object file of a key in line with its record: after a crash, or
// after a proposal that came to nothing.
func (j *Journal) conform(key string, p *Proposal) error {
	j.mu.Lock()
	if err := j.errLocked(); err != nil {
		j.mu.Unlock()
		return err
	}
	e := j.entries[key]
	if e == nil || j.queued[key] > 0 {
		j.mu.Unlock()
		return nil // what is there then will be looked at again
	}
	o := &operation{record: j.records[e.revision], proposal: p, done: make(chan struct{})}
	j.enqueue(o)
	j.mu.Unlock()
	<-o.done
	return o.err
}
