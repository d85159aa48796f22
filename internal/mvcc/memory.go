package mvcc

import (
	"context"
	"iter"
	"math"

	"github.com/annexapi/annex/internal/apierr"
	"github.com/annexapi/annex/internal/budget"
)

const (
	// decodedFactor is the memory of a decoded object in encoded bytes: see estimate.
	decodedFactor = 3
	// largeObject is the encoded size from which reading or writing a single object
	// draws on the budget: below, it is lost in what any request costs.
	largeObject = 64 << 10
	// writeFactor is the memory in encoded bytes that a write of an object takes at its
	// worst: it is decoded, copied, compared field by field and encoded again.
	writeFactor = 40
	// firstSelected is what a list with a selector holds before it knows what is
	// selected, in encoded bytes.
	firstSelected = 4 << 20
)

// listedBytes is the memory of an object in a list that is encoded from what is stored when it is written.
const listedBytes = 32

// part is what a list holds of a version until it is written.
type part uint8

const (
	wholeObject part = iota
	readValue        // its encoded bytes, from the journal
	storedValue      // nothing that is not in memory anyway
)

// weight is what versions weigh in a list.
type weight struct {
	parts func(*version) part // nil if of all of them the object is held
	// listed are those of which no object is held. They count neither as objects nor in bytes.
	listed         int64
	read           int64 // their bytes that are read from the journal
	objects, bytes int64
	undecoded      int64 // of the bytes
}

func (w *weight) add(v *version) {
	switch w.part(v) {
	case storedValue:
		w.listed++
		return
	case readValue:
		w.listed++
		w.read += int64(v.size)
		return
	}
	w.objects++
	w.bytes += int64(v.size)
	if v.decoded.Load() == nil {
		w.undecoded += int64(v.size)
	}
}

func (w *weight) part(v *version) part {
	if w.parts == nil {
		return wholeObject
	}
	return w.parts(v)
}

// memory is what the answer of an account's request needs for the versions.
func (w weight) memory(account *budget.Account) int64 {
	return account.Answer().Of(w.objects, w.bytes) + decodedFactor*w.undecoded + w.read + listedBytes*w.listed
}

// weigh adds up versions, limit of them at most unless it is 0.
func weigh(objects iter.Seq[*version], limit int64) weight { return weighIn(nil, objects, limit) }

// weighIn is weigh for versions of some of which no object is held.
func weighIn(parts func(*version) part, objects iter.Seq[*version], limit int64) weight {
	all := weight{parts: parts}
	for v := range objects {
		if all.add(v); all.objects+all.listed == limit {
			break
		}
	}
	return all
}

// hold makes sure that a request has the memory that it needs: an error is the answer.
func hold(ctx context.Context, account *budget.Account, bytes int64) error {
	return apierr.NoMemory(account.Hold(ctx, bytes))
}

// holdObject is hold for a single object that is read, or written, too.
func holdObject(ctx context.Context, v *version, written bool) error {
	account := budget.From(ctx)
	if account == nil || v.live() == 0 || v.size < largeObject {
		return nil
	}
	var one weight
	one.add(v)
	need := one.memory(account)
	if written {
		need = max(need, writeFactor*int64(v.size))
	}
	return hold(ctx, account, need)
}

// holdInitial is hold for the objects that a watch without an output begins with. They are sent one after
// the other: it needs memory for the objects on their way.
func holdInitial(ctx context.Context, objects iter.Seq[*version]) error {
	account := budget.From(ctx)
	if account == nil {
		return nil
	}
	return hold(ctx, account, weigh(objects, 2*watchBuffer).memory(account))
}

// holding is what a list holds of the server's memory while it is put together. A nil one
// has no bounds.
type holding struct {
	account *budget.Account
	all     weight // of the objects that it could need
	selects bool   // it may be fewer
	// selected is the encoded size of what has been selected so far, for as much of
	// which the account holds enough. Once it holds enough for all, nothing is counted.
	selected, enough int64
}

// newHolding holds what a page needs. What a selector leaves of the objects is not known
// before they are read, so that such a list begins with little, and grows.
func newHolding(ctx context.Context, objects iter.Seq[*version], limit int64, selects bool, parts func(*version) part) (*holding, error) {
	account := budget.From(ctx)
	if account == nil {
		return nil, nil
	}
	if selects {
		limit = 0 // what is selected is not known before they are decoded
	}
	h := &holding{account: account, all: weighIn(parts, objects, limit), selects: selects}
	if !selects || h.all.bytes <= firstSelected {
		return h, h.holdAll(ctx)
	}
	h.enough = firstSelected
	return h, hold(ctx, account, h.part(h.enough))
}

// expected is how many objects a list may have, as far as that is known.
func (h *holding) expected() int64 {
	if h == nil || h.selects {
		return 0
	}
	return h.all.listed
}

// part is what so many of the encoded bytes need, by the average of all.
func (h *holding) part(bytes int64) int64 {
	return int64(float64(h.all.memory(h.account)) * float64(bytes) / float64(h.all.bytes))
}

// holdAll waits for as much as all objects need.
func (h *holding) holdAll(ctx context.Context) error {
	h.enough = math.MaxInt64
	return hold(ctx, h.account, h.all.memory(h.account))
}

// room tells whether the account holds enough for one more that is selected. If not, what
// has been selected is to be let go, and read again after holdAll: a request that waits
// for memory has none.
func (h *holding) room(v *version) bool {
	if h == nil || h.all.part(v) != wholeObject {
		return true
	}
	h.selected += int64(v.size)
	if h.selected <= h.enough {
		return true
	}
	if !h.account.TryHold(h.part(2 * h.selected)) {
		return false
	}
	h.enough = 2 * h.selected
	return true
}
