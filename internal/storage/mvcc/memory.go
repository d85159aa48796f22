package mvcc

import (
	"context"
	"iter"
	"math"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
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

// longList is the encoded size of objects that are decoded for a list, or read from the journal, from which on it has garbage collected
// often: each becomes some times as much of it.
const longList = 8 << 20

// listedBytes is the memory of an object in a list that is encoded when it is written.
const listedBytes = 32

// weight is what versions weigh in a list of their objects.
type weight struct {
	objects, bytes int64
	undecoded      int64 // of the bytes
}

func (w *weight) add(v *version) {
	w.objects++
	w.bytes += int64(v.size)
	if v.decoded.Load() == nil {
		w.undecoded += int64(v.size)
	}
}

// memory is what the answer of an account's request needs for the versions.
func (w weight) memory(account *budget.Account) int64 {
	return account.Answer().Of(w.objects, w.bytes) + decodedFactor*w.undecoded
}

// weigh adds up versions, limit of them at most unless it is 0.
func weigh(objects iter.Seq[*version], limit int64) weight {
	var all weight
	for v := range objects {
		if all.add(v); all.objects == limit {
			break
		}
	}
	return all
}

// streamed is what a list weighs that is encoded one object after the other.
type streamed struct {
	objects int64
	bytes   int64 // of objects that are decoded, or read from the journal
	largest int64 // of all
}

// memory is what an account's request needs for the list: little of each object, what is made of it before it is written, what is
// decoded at once, and as much again as the largest object takes while it is encoded.
func (w streamed) memory(account *budget.Account) int64 {
	need := listedBytes*w.objects + min(w.bytes, earlyBytes) + decodedFactor*min(w.bytes, max(listedBatch, w.largest))
	if w.largest >= largeObject {
		need += account.Answer().Of(1, w.largest)
	}
	return need
}

// holdListed holds what a page needs whose objects are encoded one after the other, and returns how many there are; 0 if that is
// not known.
func (s *resourceStore) holdListed(ctx context.Context, objects iter.Seq[*version], p *page) (int64, error) {
	account := budget.From(ctx)
	if account == nil {
		return 0, nil
	}
	var all streamed
	for v := range objects {
		all.objects++
		all.largest = max(all.largest, int64(v.size))
		if fit := v.fit.Load(); p.selects || p.as.maker != nil || !fit.Of(p.as.form) || !fit.Fits() || v.value.Load() == nil {
			all.bytes += int64(v.size)
		}
		if all.objects == p.predicate.Limit && !p.selects {
			break
		}
	}
	if err := hold(ctx, account, all.memory(account)); err != nil {
		return 0, err
	}
	if all.bytes > longList {
		account.CollectOften()
	}
	if p.selects {
		return 0, nil
	}
	return all.objects, nil
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
	all     weight // of the objects that it could need; it may be fewer if it selects
	// selected is the encoded size of what has been selected so far, for as much of
	// which the account holds enough. Once it holds enough for all, nothing is counted.
	selected, enough int64
}

// newHolding holds what a page of objects needs. What a selector leaves of the objects is not known
// before they are read, so that such a list begins with little, and grows.
func newHolding(ctx context.Context, objects iter.Seq[*version], limit int64, selects bool) (*holding, error) {
	account := budget.From(ctx)
	if account == nil {
		return nil, nil
	}
	if selects {
		limit = 0 // what is selected is not known before they are decoded
	}
	h := &holding{account: account, all: weigh(objects, limit)}
	if !selects || h.all.bytes <= firstSelected {
		return h, h.holdAll(ctx)
	}
	h.enough = firstSelected
	return h, hold(ctx, account, h.part(h.enough))
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
	if h == nil {
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
