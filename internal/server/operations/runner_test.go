package operations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/operations"
	"github.com/annexapi/annex/internal/testing/testwait"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

func fakeClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

// untilDone waits for the end of a context.
func untilDone(ctx context.Context) (any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestRunner_twoReplicas_runOnce(t *testing.T) {
	t.Parallel()
	const n = 50
	s, clock := newStore(), fakeClock()
	var runs sync.Map
	count := map[string]action{"count": {run: func(_ context.Context, a *operations.Attempt) (any, error) {
		times, _ := runs.LoadOrStore(a.Name(), new(atomic.Int32))
		return times.(*atomic.Int32).Add(1), nil
	}}}
	s.start(t, clock, count)
	s.start(t, clock, count)
	for i := range n {
		s.add(fmt.Sprint("o", i), "count")
	}
	for i := range n {
		if op := s.becomes(
			t,
			fmt.Sprint("o", i),
			operationv1.OperationSucceeded,
		); string(op.Status.Result.Raw) != "1" ||
			op.Status.Attempts != 1 {
			t.Errorf("%s: %s, %d attempts", op.Name, op.Status.Result.Raw, op.Status.Attempts)
		}
	}
}

// handOver runs an operation on the first of two replicas and disconnects that replica. It returns when the action
// has been canceled, which must happen before the second replica may begin.
func handOver(
	t *testing.T,
	s *store,
	clock *clocktesting.FakeClock,
	resumable bool,
) (first *replica, told chan error, release chan struct{}, begun *atomic.Bool) {
	t.Helper()
	told, release, begun = make(chan error, 1), make(chan struct{}), &atomic.Bool{}
	first = s.start(t, clock, map[string]action{"move": {resumable, func(ctx context.Context, a *operations.Attempt) (any, error) {
		if err := a.Save(ctx, "half"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		told <- context.Cause(ctx)
		<-release
		return "the first's", nil
	}}})
	s.add("o", "move")
	testwait.Until(t, "the checkpoint is stored", func() bool { return s.get("o").Status.Checkpoint != nil })
	s.start(t, clock, map[string]action{"move": {resumable, func(_ context.Context, a *operations.Attempt) (any, error) {
		begun.Store(true)
		var checkpoint string
		_, err := a.Restore(&checkpoint)
		return fmt.Sprint(checkpoint, " ", a.Number()), err
	}}})
	// Both replicas have observed a successful renewal, with which the leases begin.
	renewed := s.get("o").Status.RenewTime
	testwait.Until(t, "the claim is renewed", func() bool {
		clock.Step(time.Second)
		return !s.get("o").Status.RenewTime.Equal(renewed)
	})
	first.disconnect(true)
	cutAt := clock.Now()
	testwait.Until(t, "the first is told to end", func() bool {
		if clock.Since(cutAt) < lease*2/3+2*time.Second {
			clock.Step(time.Second)
		}
		return len(told) > 0
	})
	if begun.Load() {
		t.Error("the second began while the first held the claim")
	}
	return first, told, release, begun
}

func TestRunner_lostClaim_isTakenOver(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	first, told, release, begun := handOver(t, s, clock, true)
	if err := <-told; err == nil || !strings.Contains(err.Error(), "server lost the operation") {
		t.Errorf("the first ended for %v", err)
	}
	testwait.Until(t, "the second begins", func() bool {
		clock.Step(time.Second)
		return begun.Load()
	})
	op := s.becomes(t, "o", operationv1.OperationSucceeded)
	if string(op.Status.Result.Raw) != `"half 2"` || op.Status.Attempts != 2 {
		t.Errorf("%s %+v", op.Status.Result.Raw, op.Status)
	}
	// The first replica reconnects with a result, and must not write it.
	first.disconnect(false)
	close(release)
	first.end()
	testwait.Until(t, "the first ends", func() bool {
		select {
		case <-first.ended:
			return true
		default:
			clock.Step(time.Second)
			return false
		}
	})
	if now := s.get("o"); now.ResourceVersion != op.ResourceVersion {
		t.Errorf("the first wrote %+v", now.Status)
	}
}

// A suspended process does not know, when it continues, that its lease has expired.
func TestRunner_suspendedHolder_writesNothing(t *testing.T) {
	t.Parallel()
	s, suspended, clock := newStore(), fakeClock(), fakeClock()
	resume, told := make(chan struct{}), make(chan error, 1)
	s.start(t, suspended, map[string]action{"move": {true, func(ctx context.Context, a *operations.Attempt) (any, error) {
		<-resume
		a.Progress(1, 2) // starts a write at once, which must not succeed
		suspended.Step(time.Second)
		<-ctx.Done()
		told <- context.Cause(ctx)
		return "the first's", nil
	}}})
	s.add("o", "move")
	s.becomes(t, "o", operationv1.OperationRunning)
	s.start(
		t,
		clock,
		map[string]action{"move": {true, func(context.Context, *operations.Attempt) (any, error) { return "the second's", nil }}},
	)
	testwait.Until(t, "the second has ended", func() bool {
		clock.Step(time.Second)
		return s.get("o").Status.Phase == operationv1.OperationSucceeded
	})
	op := s.get("o")
	close(resume)
	if err := <-told; err == nil || !strings.Contains(err.Error(), "server lost the operation") {
		t.Errorf("the first ended for %v", err)
	}
	if now := s.get("o"); string(now.Status.Result.Raw) != `"the second's"` || now.ResourceVersion != op.ResourceVersion {
		t.Errorf("the first wrote %+v", now.Status)
	}
}

// A hanging write fails when it becomes too late for it. The action has to be canceled then, and not only after the
// next write.
func TestAttempt_hangingWrite_endsWithClaim(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	first, told, release, _ := handOver(t, s, clock, true)
	defer close(release)
	<-told
	first.mu.Lock()
	defer first.mu.Unlock()
	renewed := s.get("o").Status.RenewTime.Time
	// The test steps the clock whether or not the write has begun. A write that begins late is tried nevertheless.
	late := max(first.tried.Sub(renewed)-lease*2/3, 0)
	held := first.hangs.Sub(renewed)
	if held < lease/2 || held > lease*5/6+late {
		t.Errorf("the last write could have taken until %s after the renewal, and the lease is %s", held, lease)
	}
}

func TestRunner_notResumable_failsWithoutHolder(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	_, _, release, begun := handOver(t, s, clock, false)
	defer close(release)
	var op *operationv1.Operation
	testwait.Until(t, "the second tells that it failed", func() bool {
		clock.Step(time.Second)
		op = s.get("o")
		return op.Status.Phase == operationv1.OperationFailed
	})
	if op.Status.Error.Reason != metav1.StatusReasonServiceUnavailable ||
		!strings.Contains(op.Status.Error.Message, "stopped while it ran the operation; the progress of the operation is unknown") ||
		op.Status.Attempts != 1 ||
		begun.Load() {
		t.Errorf("%+v %v", op.Status, begun.Load())
	}
}

// interrupt adds an operation that earlier processes have left running.
func (s *store) interrupt(name, action string, interruptions int32, checkpoint string) {
	s.add(name, action)
	s.change(name, func(op *operationv1.Operation) {
		op.Status = operationv1.OperationStatus{
			Phase:         operationv1.OperationRunning,
			Holder:        "one that was killed",
			Attempts:      interruptions + 1,
			Interruptions: interruptions,
		}
		if checkpoint != "" {
			op.Status.Checkpoint = &runtime.RawExtension{Raw: []byte(checkpoint)}
		}
	})
}

func TestRunner_manyInterruptions_fails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interruptions int32
		saves         any
		left          int32
		runs          bool
	}{
		"the fourth process was killed":                {3, nil, 4, true},
		"the fifth":                                    {4, nil, 5, false},
		"the fourth, and it saves what had been saved": {3, "half", 4, true},
		"the fourth, and it comes further in another":  {3, "more", 0, true},
		"the first": {0, nil, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, clock := newStore(), fakeClock()
			s.interrupt("o", "move", test.interruptions, `"half"`)
			began, release := make(chan struct{}), make(chan struct{})
			s.start(t, clock, map[string]action{"move": {true, func(ctx context.Context, a *operations.Attempt) (any, error) {
				if test.saves != nil {
					if err := a.Save(ctx, test.saves); err != nil {
						return nil, err
					}
				}
				close(began)
				<-release
				return "done", nil
			}}}, func(c *operations.Config) { c.Shared = false })
			if !test.runs {
				op := s.becomes(t, "o", operationv1.OperationFailed)
				if e := op.Status.Error; e.Code != 503 || !strings.Contains(e.Message, "stopped 5 times in a row") ||
					op.Status.Interruptions != test.left ||
					op.Status.Attempts != 5 {
					t.Errorf("%+v", op.Status)
				}
				return
			}
			<-began
			if op := s.get("o"); op.Status.Interruptions != test.left {
				t.Errorf("%d interruptions, want %d", op.Status.Interruptions, test.left)
			}
			close(release)
			s.becomes(t, "o", operationv1.OperationSucceeded)
		})
	}
}

func TestRunner_unknownAction_isLeftToReplica(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	old := map[string]action{"known": {run: func(context.Context, *operations.Attempt) (any, error) { return "old", nil }}}
	s.start(t, clock, old)
	s.add("new", "added")
	s.interrupt("running", "added", 0, "")
	s.add("after", "known")
	s.becomes(t, "after", operationv1.OperationSucceeded)
	clock.Step(2 * lease)
	s.add("later", "known")
	s.becomes(t, "later", operationv1.OperationSucceeded)
	for name, phase := range map[string]operationv1.OperationPhase{"new": operationv1.OperationPending,
		"running": operationv1.OperationRunning} {
		if op := s.get(name); op.Status.Phase != phase {
			t.Errorf("%s: the old replica has written %+v", name, op.Status)
		}
	}
	s.start(t, clock, map[string]action{"added": {true, func(context.Context, *operations.Attempt) (any, error) { return "new", nil }}})
	s.becomes(t, "new", operationv1.OperationSucceeded)
	testwait.Until(t, "the lease is over", func() bool {
		clock.Step(time.Second)
		return s.get("running").Status.Phase == operationv1.OperationSucceeded
	})
	// An operation whose action no replica has can still be canceled.
	s.add("none", "removed")
	s.change("none", func(op *operationv1.Operation) { op.Spec.Cancel = true })
	s.becomes(t, "none", operationv1.OperationCancelled)
}

func TestRunner_unknownAction_failsInExclusiveStorage(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	s.start(t, clock, nil, func(c *operations.Config) { c.Shared = false })
	s.add("o", "removed")
	if op := s.becomes(
		t,
		"o",
		operationv1.OperationFailed,
	); op.Status.Error.Code != 400 ||
		!strings.Contains(op.Status.Error.Message, "has no such action: removed") {
		t.Errorf("%+v", op.Status.Error)
	}
}

func TestAttempt_frequentProgress_isWrittenRarely(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	s.start(t, clock, map[string]action{"talk": {run: func(_ context.Context, a *operations.Attempt) (any, error) {
		for i := range int64(10000) {
			a.Progress(i, 9999)
			a.Message(fmt.Sprint("at ", i, strings.Repeat("!", 2000)))
			a.Log(fmt.Sprint("line ", i))
		}
		return nil, nil
	}}})
	s.add("o", "talk")
	op := s.becomes(t, "o", operationv1.OperationSucceeded)
	if n := s.count(); n > 3 {
		t.Errorf("%d writes", n)
	}
	log := op.Status.Log
	if len(log) > 16<<10 || len(log) < 15<<10 || !strings.HasPrefix(log, "2026-01-02T03:04:05Z line ") ||
		!strings.HasSuffix(log, " line 9999\n") {
		t.Errorf("%d bytes of log: %.100s", len(log), log)
	}
	if p := op.Status.Progress; p.Percent != 100 || p.Done != 9999 || len(op.Status.Message) != 1024 ||
		!strings.HasPrefix(op.Status.Message, "at 9999!") {
		t.Errorf("%+v %q", p, op.Status.Message)
	}
}

func TestRunner_maxRunning(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	var running, most atomic.Int32
	next := make(chan struct{})
	s.start(t, clock, map[string]action{"wait": {run: func(context.Context, *operations.Attempt) (any, error) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-next
		running.Add(-1)
		return nil, nil
	}}}, func(c *operations.Config) { c.MaxRunning = 2 })
	for i := range 5 {
		s.add(fmt.Sprint("o", i), "wait")
	}
	testwait.Until(t, "as many run as may", func() bool { return running.Load() == 2 })
	for range 5 {
		next <- struct{}{}
	}
	for i := range 5 {
		s.becomes(t, fmt.Sprint("o", i), operationv1.OperationSucceeded)
	}
	if most.Load() != 2 {
		t.Errorf("%d ran at a time", most.Load())
	}
}

func TestRunner_stop_waitsForActions(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	stubborn := make(chan struct{})
	defer close(stubborn)
	ignore := func(context.Context, *operations.Attempt) (any, error) { <-stubborn; return nil, nil }
	obey := func(ctx context.Context, _ *operations.Attempt) (any, error) { return untilDone(ctx) }
	finish := func(ctx context.Context, _ *operations.Attempt) (any, error) {
		<-ctx.Done()
		return "done all the same", nil
	}
	r := s.start(t, clock, map[string]action{
		"ignores": {
			run: ignore,
		},
		"ignores-resumably": {true, ignore},
		"obeys":             {run: obey},
		"obeys-resumably":   {true, obey},
		"finishes":          {run: finish},
	})
	all := []string{"ignores", "ignores-resumably", "obeys", "obeys-resumably", "finishes"}
	for _, name := range all {
		s.add(name, name)
	}
	for _, name := range all {
		s.becomes(t, name, operationv1.OperationRunning)
	}
	r.end()
	if op := s.becomes(
		t,
		"obeys",
		operationv1.OperationFailed,
	); op.Status.Error.Message != "the server stopped while the operation was running: the server is stopping" ||
		op.Status.Error.Code != 503 {
		t.Errorf("%+v", op.Status.Error)
	}
	if op := s.becomes(
		t,
		"obeys-resumably",
		operationv1.OperationPending,
	); op.Status.Holder != "" ||
		op.Status.Message != "interrupted: the server stopped; it will be resumed" {
		t.Errorf("%+v", op.Status)
	}
	s.becomes(t, "finishes", operationv1.OperationSucceeded)
	testwait.Until(t, "the runner ends", func() bool {
		clock.Step(time.Second)
		select {
		case <-r.ended:
			return true
		default:
			return false
		}
	})
	if op := s.get(
		"ignores",
	); op.Status.Phase != operationv1.OperationFailed ||
		!strings.Contains(op.Status.Message, "the action had not ended after 5s") {
		t.Errorf("%+v", op.Status)
	}
	if op := s.get("ignores-resumably"); op.Status.Phase != operationv1.OperationRunning || op.Status.Holder != "replica-0" {
		t.Errorf("%+v", op.Status)
	}
}

func TestAttempt_end_isRetried(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	done := make(chan struct{})
	r := s.start(t, clock, map[string]action{"end": {run: func(context.Context, *operations.Attempt) (any, error) {
		<-done
		return nil, errors.New("it broke")
	}}})
	s.add("o", "end")
	s.becomes(t, "o", operationv1.OperationRunning)
	r.disconnect(true)
	close(done)
	testwait.Until(t, "the write fails", func() bool { return r.failures() > 0 })
	r.disconnect(false)
	testwait.Until(t, "the end is written", func() bool {
		clock.Step(time.Second)
		return s.get("o").Status.Phase == operationv1.OperationFailed
	})
}

type unwell struct{}

func (*unwell) MarshalJSON() ([]byte, error) { panic("cannot be encoded") }

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// The methods of an action's result and error may panic, and either may exceed the size that can be stored.
func TestAttempt_act_hostileResults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("stores causes and results of megabytes")
	}
	s, clock := newStore(), fakeClock()
	var causes field.ErrorList
	for i := range 10000 {
		causes = append(causes, field.Invalid(field.NewPath("spec").Index(i), i, "is too much"))
	}
	actions := map[string]action{
		"result": {run: func(context.Context, *operations.Attempt) (any, error) { return &unwell{}, nil }},
		"error":  {run: func(context.Context, *operations.Attempt) (any, error) { return nil, (*nilError)(nil) }},
		"long": {run: func(_ context.Context, a *operations.Attempt) (any, error) {
			a.Unit(strings.Repeat("u", 1<<20))
			a.Progress(1, 2)
			return nil, errors.New(strings.Repeat("é", 1<<20))
		}},
		"causes": {run: func(context.Context, *operations.Attempt) (any, error) {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Widget"}, "w", causes)
		}},
		"large": {run: func(context.Context, *operations.Attempt) (any, error) { return strings.Repeat("x", 1<<20), nil }},
	}
	s.start(t, clock, actions)
	for name, want := range map[string]string{
		"result": "the action panicked: cannot be encoded", "error": "the action panicked: runtime error: invalid memory address",
		"long": "éé", "causes": "spec[1]: Invalid value: 1: is too much", "large": "the result has 1048578 bytes",
	} {
		s.add(name, name)
		op := s.becomes(t, name, operationv1.OperationFailed)
		stored, err := json.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		if op.Status.Error == nil || !strings.Contains(op.Status.Error.Message, want) || !utf8.ValidString(op.Status.Error.Message) ||
			len(stored) > 64<<10 {
			t.Errorf("%s: %d bytes: %.200s", name, len(stored), stored)
		}
	}
	if e := s.get("causes").Status.Error; e.Reason != metav1.StatusReasonInvalid || e.Code != 422 || len(e.Details.Causes) == 0 {
		t.Errorf("%s %d %d causes", e.Reason, e.Code, len(e.Details.Causes))
	}
}

// The request of an operation has to leave room for its outcome.
func TestStart_largeRequest_isRefused(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	r := s.start(t, clock, nil)
	call := func(size int, ttl time.Duration) *define.Call {
		sent := &operationv1.Operation{}
		sent.Spec.Action = strings.Repeat("x", size)
		return &define.Call{
			Subresource: &define.Subresource{Name: "move", Long: &define.Long{TTL: ttl}},
			Namespace:   "default", Name: "w", Parent: &operationv1.Operation{}, Object: sent,
		}
	}
	if _, err := r.runner.Start(
		t.Context(),
		call(1<<20, 0),
	); !apierrors.IsRequestEntityTooLargeError(err) ||
		!strings.Contains(err.Error(), "store it elsewhere") {
		t.Errorf("%v", err)
	}
	if _, err := r.runner.Start(t.Context(), call(512<<10, 100*365*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	op := s.get("w-move-")
	if ttl := op.Spec.TTLSecondsAfterFinished; ttl == nil || *ttl < 0 {
		t.Errorf("kept for %v", ttl)
	}
}

// A cancellation takes effect if it arrives before the operation begins, and if it arrives with another client's
// write.
func TestRunner_cancel(t *testing.T) {
	t.Parallel()
	s, clock := newStore(), fakeClock()
	began := make(chan struct{}, 1)
	actions := map[string]action{"wait": {run: func(ctx context.Context, _ *operations.Attempt) (any, error) {
		began <- struct{}{}
		return untilDone(ctx)
	}}}
	s.add("early", "wait")
	s.change("early", func(op *operationv1.Operation) { op.Spec.Cancel = true })
	s.start(t, clock, actions)
	if op := s.becomes(t, "early", operationv1.OperationCancelled); op.Status.Attempts != 0 || op.Status.CompletionTime == nil {
		t.Errorf("%+v", op.Status)
	}
	s.add("late", "wait")
	<-began
	s.becomes(t, "late", operationv1.OperationRunning)
	s.change("late", func(op *operationv1.Operation) { op.Spec.Cancel = true })
	s.becomes(t, "late", operationv1.OperationCancelled)
}

// Reporting progress takes hardly any time, because it does not write.
func BenchmarkProgress(b *testing.B) {
	s, clock, n := newStore(), fakeClock(), int64(b.N)
	r := s.start(b, clock, map[string]action{"talk": {run: func(_ context.Context, a *operations.Attempt) (any, error) {
		for i := range n {
			a.Progress(i, n)
		}
		return nil, nil
	}}})
	b.ResetTimer()
	s.add("o", "talk")
	testwait.Until(b, "it ends", func() bool { return s.get("o").Status.Phase == operationv1.OperationSucceeded })
	b.StopTimer()
	b.ReportMetric(float64(s.count()), "writes")
	r.end()
}
