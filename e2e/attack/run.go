package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// The limits of an attack's effect on the well-behaved callers: their 99th percentile stays below mostLatency, or
// below mostFactor times the quiet one.
const (
	mostLatency = 250 * time.Millisecond
	mostFactor  = 5
	// mostBusy is the time that a server may keep working for requests whose clients have gone.
	mostBusy = 10 * time.Second
)

// settlePatience is the time after an attack in which a server has to answer as before.
const settlePatience = time.Minute

// result is one line of the table.
type result struct {
	Attack    string        `json:"attack"`
	Sent      string        `json:"sent"`
	User      latency       `json:"user"`
	Admin     latency       `json:"administrator"`
	Peak      int64         `json:"peakBytes"`     // resident
	Processor time.Duration `json:"processorTime"` // of the server, during the attack
	// Busy is the time that the server kept working after the attack, for requests that were over; settlePatience at
	// most.
	Busy   time.Duration `json:"busyAfter"`
	Failed []string      `json:"failed"` // the failed criteria; none if the attack did no harm
}

// results are the results of a run.
type results struct {
	Server   string        `json:"server"`
	Duration time.Duration `json:"duration"` // of each attack
	Bound    int64         `json:"boundBytes"`
	Results  []result      `json:"results"` // the first is of the quiet time
	// Checked is the number of operations of the well-behaved callers in the history.
	Checked int    `json:"checkedOperations"`
	History string `json:"history"` // the violation in it; empty if it is linearizable
	Stopped string `json:"stopped"` // the reason why attacks were left out; empty if none were
	Ended   string `json:"ended"`   // the error of the server's end; empty if there was none, or if the program did not start the server
}

// failed reports whether a criterion has failed.
func (r *results) failed() bool {
	for _, one := range r.Results {
		if len(one.Failed) > 0 {
			return true
		}
	}
	return r.History != "" || r.Ended != "" || r.Stopped != ""
}

// bench runs attacks against a server.
type bench struct {
	t        *target
	duration time.Duration
	long     time.Duration // of the stalled reviews; 0 for that of the others
	// budget is the server's memory budget for requests, in bytes. During an attack the server may use twice as much
	// beside its memory before: as much again is for garbage.
	budget int64
	most   int64   // resident bytes of the server beyond which no further attack is tried; 0 for no limit
	timing bool    // whether latencies and the time that the server is busy decide
	idle   float64 // the part of a processor that the quiet server uses
	done   func(result)
}

// run measures the quiet server and then each attack, and checks the history. The error is an error of the program;
// the effects of attacks are in the results.
func (b *bench) run(ctx context.Context, all []attack) (*results, error) {
	h := newHistory()
	user, admin := newCaller(b.t, b.t.user, h), newCaller(b.t, b.t.admin, h)
	calling, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	for _, c := range []*caller{user, admin} {
		callers.Go(func() { c.run(calling) })
	}
	defer callers.Wait()
	defer stop()
	pause(ctx, min(time.Second, b.duration)) // for connections and caches
	rs := &results{Duration: b.duration}
	quiet, err := b.measure(ctx, nil, user, admin)
	if err != nil {
		return rs, err
	}
	b.judge(&quiet, quiet, 0)
	rs.Results = append(rs.Results, quiet)
	before, err := resident(b.t.pid)
	if err != nil {
		return rs, err
	}
	rs.Bound = before + 2*b.budget
	b.done(quiet)
	for _, a := range all {
		one, err := b.measure(ctx, a, user, admin)
		if errors.Is(err, errMemory) {
			rs.Stopped = err.Error()
			break
		}
		if err != nil {
			return rs, err
		}
		b.judge(&one, quiet, rs.Bound)
		rs.Results = append(rs.Results, one)
		b.done(one)
	}
	stop()
	callers.Wait()
	b.last(ctx, h)
	var wrong error
	if rs.Checked, wrong = h.check(); wrong != nil {
		rs.History = wrong.Error()
	}
	return rs, ctx.Err()
}

// last reads once more the objects that both callers changed, for the history.
func (b *bench) last(ctx context.Context, h *history) {
	reader := newCaller(b.t, b.t.admin, h)
	defer reader.client.CloseIdleConnections()
	for i := range shared {
		reader.read(ctx, fmt.Sprint(sharedName, i))
	}
}

// measure runs an attack, or nothing, and returns its effect on the callers. It returns when the server serves them
// again.
func (b *bench) measure(ctx context.Context, a attack, user, admin *caller) (result, error) {
	one := result{Attack: "quiet", Sent: "-"}
	duration := b.duration
	if a != nil {
		one.Attack = a.Name()
		if _, stalled := a.(stalledReviews); stalled && b.long > 0 {
			duration = b.long
		}
	}
	if err := resetPeak(b.t.pid); err != nil {
		return one, err
	}
	before, err := processorTime(b.t.pid)
	if err != nil {
		return one, b.gone(one.Attack, err)
	}
	begun := time.Now()
	attacking, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	if most, err := peak(b.t.pid); err != nil {
		return one, b.gone(one.Attack, err)
	} else if b.most > 0 && most > b.most {
		return one, fmt.Errorf("before the attack %s: %w: %d MB, more than %d", one.Attack, errMemory, most>>20, b.most>>20)
	}
	r := newReport()
	if a != nil {
		if err := hurried(attacking, func() error { return a.Run(attacking, b.t, r) }); errors.Is(err, errHangs) {
			return one, fmt.Errorf("the attack %s: %w", one.Attack, err)
		} else if err != nil && attacking.Err() == nil {
			one.Failed = append(one.Failed, "it could not be tried: "+err.Error())
		}
		one.Sent = r.String()
	}
	if _, revoked := a.(revokedWatch); !revoked {
		<-attacking.Done() // attacks that have sent everything are measured for as long as the others
	}
	cancel()
	ended := time.Now()
	after, err := processorTime(b.t.pid)
	if err != nil {
		return one, b.gone(one.Attack, err)
	}
	one.Processor = after - before
	if a != nil {
		if one.Busy, err = b.rest(ctx); err != nil {
			return one, b.gone(one.Attack, err)
		}
	} else {
		b.idle = float64(one.Processor) / float64(ended.Sub(begun))
	}
	settling, stopSettling := context.WithTimeout(ctx, settlePatience)
	defer stopSettling()
	user.after(settling, ended)
	admin.after(settling, ended)
	if settling.Err() != nil && ctx.Err() == nil {
		one.Failed = append(one.Failed, fmt.Sprintf("no caller was served within %s after it", settlePatience))
	}
	one.User, one.Admin = user.between(begun, ended), admin.between(begun, ended)
	if one.Peak, err = peak(b.t.pid); err != nil {
		return one, b.gone(one.Attack, err)
	}
	one.Failed = append(one.Failed, r.holes...)
	return one, ctx.Err()
}

// restless is the part of a processor, beyond that at rest, by which a server counts as still working. It is small,
// because other processes may leave the server little.
const restless = 0.12

// rest waits until the server works no more than it does for the well-behaved callers, and returns the time until
// then.
func (b *bench) rest(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	for b.t.pid != 0 && time.Since(begun) < settlePatience {
		before, err := processorTime(b.t.pid)
		if err != nil {
			return 0, err
		}
		from := time.Now()
		pause(ctx, time.Second)
		after, err := processorTime(b.t.pid)
		if err != nil || ctx.Err() != nil {
			return 0, err
		}
		if most, err := resident(b.t.pid); err != nil || b.most > 0 && most > b.most {
			return time.Since(begun), err // the next attack is not tried
		}
		if float64(after-before)/float64(time.Since(from)) <= b.idle+restless {
			return from.Sub(begun), nil
		}
	}
	return time.Since(begun), nil
}

// errMemory is the error of a server whose resident memory endangers the machine.
var errMemory = errors.New("the server's memory endangers this machine (--most-memory)")

// errHangs is the error of an attack that does not end.
var errHangs = errors.New("it does not end")

// hurried runs an attack, and returns errHangs if it continues long after its context has ended: then the program
// ends, and the attack with it.
func hurried(ctx context.Context, attack func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- attack() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	select {
	case err := <-ended:
		return err
	case <-patience.C:
		return errHangs
	}
}

// gone returns the error of a server that has ended.
func (b *bench) gone(attack string, err error) error {
	return fmt.Errorf("the server ended during the attack %s: %w", attack, err)
}

// judge adds the criteria that a result fails.
func (b *bench) judge(one *result, quiet result, bound int64) {
	for _, caller := range []struct {
		name       string
		now, quiet latency
	}{{"the user", one.User, quiet.User}, {"the administrator", one.Admin, quiet.Admin}} {
		if caller.now.Failed > 0 {
			one.Failed = append(
				one.Failed,
				fmt.Sprintf("%d of %d requests of %s failed: %s", caller.now.Failed, caller.now.Requests, caller.name, caller.now.Reason),
			)
		}
		if caller.now.Requests == 0 {
			one.Failed = append(one.Failed, "no request of "+caller.name+" was answered")
		}
		if most := max(mostLatency, mostFactor*caller.quiet.P99); b.timing && caller.now.P99 > most {
			one.Failed = append(one.Failed, fmt.Sprintf("p99 of %s is %s, more than %s", caller.name, round(caller.now.P99), round(most)))
		}
	}
	if b.timing && one.Busy > mostBusy {
		one.Failed = append(one.Failed, fmt.Sprintf("it went on working for %.0f s", one.Busy.Seconds()))
	}
	if bound > 0 && one.Peak > bound {
		one.Failed = append(one.Failed, fmt.Sprintf("memory of %d MB is more than %d MB", one.Peak>>20, bound>>20))
	}
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// named returns the attacks with names in a list separated by commas, all for an empty one.
func named(list string) ([]attack, error) {
	if list == "" {
		return attacks(), nil
	}
	var some []attack
	var unknown []error
	for name := range strings.SplitSeq(list, ",") {
		found := false
		for _, a := range attacks() {
			if a.Name() == strings.TrimSpace(name) {
				some, found = append(some, a), true
			}
		}
		if !found {
			unknown = append(unknown, fmt.Errorf("--only: there is no attack %q; --list prints them", name))
		}
	}
	return some, errors.Join(unknown...)
}
