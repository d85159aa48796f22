package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

type action string

const (
	create action = "create"
	get    action = "get"
	update action = "update"
	remove action = "delete"
)

type outcome int

const (
	done outcome = iota
	missing
	conflict // of a create: the object exists
	unknown  // it may have been done, now or later
)

// operation is a request of the well-behaved callers for one object, and its outcome.
type operation struct {
	action    action
	key       string
	before    string // the value that an update replaces
	value     string // the value read or written
	outcome   outcome
	call, end int64
}

// history records the operations of the well-behaved callers. Its methods may be called concurrently.
type history struct {
	begun time.Time

	mu  sync.Mutex
	all map[string][]operation // by key
}

func newHistory() *history { return &history{begun: time.Now(), all: map[string][]operation{}} }

func (h *history) begin(a action, key string) operation {
	return operation{action: a, key: key, call: int64(time.Since(h.begun))}
}

func (h *history) end(op operation) {
	op.end = int64(time.Since(h.begun))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[op.key] = append(h.all[op.key], op)
}

// checkPatience is the time that the check of one object's history may take.
const checkPatience = 20 * time.Second

// check returns the number of operations, and an error if no order of the operations on some object explains their
// outcomes: then an acknowledged write is lost, or a read went back in time.
func (h *history) check() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	model := (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, _ any) []any { return input.(operation).step(state.(string)) },
	}).ToModel()
	n, last := 0, int64(time.Since(h.begun))
	for key, all := range h.all {
		n += len(all)
		var operations []porcupine.Operation
		for _, op := range all {
			one := porcupine.Operation{Input: op, Call: op.call, Return: op.end}
			if op.outcome == unknown {
				one.Return = last
			}
			operations = append(operations, one)
		}
		switch porcupine.CheckOperationsTimeout(model, operations, checkPatience) {
		case porcupine.Illegal:
			slices.SortFunc(all, func(a, b operation) int { return int(a.call - b.call) })
			return n, fmt.Errorf(
				"the %d operations on %s have no order that explains their outcomes; the last: %+v",
				len(all),
				key,
				all[max(0, len(all)-5):],
			)
		case porcupine.Unknown:
			return n, fmt.Errorf("the %d operations on %s could not be checked within %s", len(all), key, checkPatience)
		}
	}
	return n, nil
}

// step returns the possible values of an object after an operation, none if the outcome is impossible. An empty value
// means that there is no object.
func (op operation) step(value string) []any {
	var possible bool
	next := value
	switch op.action {
	case get:
		if op.outcome == missing {
			possible = value == ""
		} else {
			possible = value == op.value
		}
		return states(possible, value)
	case create:
		possible, next = value == "", op.value
	case update:
		possible, next = value != "" && value == op.before, op.value
	case remove:
		possible, next = value != "", ""
	}
	switch op.outcome {
	case done:
		return states(possible, next)
	case missing:
		return states(value == "" && op.action != create, value)
	case conflict:
		return states(value != "" && !possible, value)
	}
	if possible {
		return []any{value, next}
	}
	return []any{value}
}

func states(possible bool, value string) []any {
	if !possible {
		return nil
	}
	return []any{value}
}
