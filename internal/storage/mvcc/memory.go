package mvcc

import (
	"context"
	"iter"
	"math"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
)

const (
	// decodedFactor is the memory of a decoded object in multiples of its encoded size; see estimate.
	decodedFactor = 3
	// largeObject is the encoded size from which reading or writing a single object draws on the budget. The memory for
	// a smaller object is negligible beside the cost of any request.
	largeObject = 64 << 10
	// writeFactor is the peak memory of a write in multiples of the encoded size: the object is decoded, copied,
	// compared field by field and encoded again.
	writeFactor = 40
	// firstSelected is the memory, in encoded bytes, that a list with a selector holds before it knows the selected
	// objects.
	firstSelected = 4 << 20
)

// longList is the encoded size of objects decoded for a list, or read from the journal, above which the list requests
// frequent garbage collections: each object becomes several times as much garbage.
const longList = 8 << 20

// listedBytes is the memory of an object in a list that is encoded while it is written.
const listedBytes = 32

// weight is the total size of versions in a list of their objects.
type weight struct {
	objects, bytes int64
	undecoded      int64 // the part of bytes that is not decoded
}

func (w *weight) add(v *version) {
	w.objects++
	w.bytes += int64(v.size)
	if v.decoded.Load() == nil {
		w.undecoded += int64(v.size)
	}
}

// memory returns the memory that the response to an account's request needs for the versions.
func (w weight) memory(account *budget.Account) int64 {
	return account.Answer().Of(w.objects, w.bytes) + decodedFactor*w.undecoded
}

// weigh returns the weight of versions, at most limit of them unless limit is 0.
func weigh(objects iter.Seq[*version], limit int64) weight {
	var all weight
	for v := range objects {
		if all.add(v); all.objects == limit {
			break
		}
	}
	return all
}

// streamed is the weight of a list that is encoded one object after the other.
type streamed struct {
	objects int64
	bytes   int64 // of objects that are decoded, or read from the journal
	largest int64 // size of the largest object
}

// memory returns the memory that an account's request needs for the list: a little for each object, the items that are
// made before the list is written, the objects that are decoded at once, and the memory of encoding the largest object.
func (w streamed) memory(account *budget.Account) int64 {
	need := listedBytes*w.objects + min(w.bytes, earlyBytes) + decodedFactor*min(w.bytes, max(listedBatch, w.largest))
	if w.largest >= largeObject {
		need += account.Answer().Of(1, w.largest)
	}
	return need
}

// holdListed holds the memory for a page whose objects are encoded one after the other. It returns the number of
// objects; 0 if that is unknown.
func (s *resourceStore) holdListed(ctx context.Context, objects iter.Seq[*version], p *page) (int64, error) {
	account := budget.From(ctx)
	if account == nil {
		return 0, nil
	}
	var all streamed
	for v := range objects {
		all.objects++
		all.largest = max(all.largest, int64(v.size))
		if match := v.match.Load(); p.selects || p.as.maker != nil || !match.BelongsTo(p.as.encoding) || !match.Exact() || v.value.Load() == nil {
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

// hold waits until the request has the memory that it needs. Its error is the response.
func hold(ctx context.Context, account *budget.Account, bytes int64) error {
	return apierr.NoMemory(account.Hold(ctx, bytes))
}

// holdObject is like hold, for a single object that is read, and also written if written is set.
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

// holdInitial is like hold, for the initial objects of a watch without an output. They are sent one after the other, so
// the memory covers only the objects in the channel.
func holdInitial(ctx context.Context, objects iter.Seq[*version]) error {
	account := budget.From(ctx)
	if account == nil {
		return nil
	}
	return hold(ctx, account, weigh(objects, 2*watchBuffer).memory(account))
}

// holding is the share of the server's memory that a list holds while it is assembled. A nil holding has no bounds.
type holding struct {
	account *budget.Account
	all     weight // of the objects that the list may need; a selector may select fewer
	// selected is the encoded size of the objects selected so far. The account holds enough memory for enough bytes;
	// once it holds enough for all objects, enough is math.MaxInt64.
	selected, enough int64
}

// newHolding holds the memory for a page of objects. The number of objects that a selector matches is known only after
// reading them, so a list with a selector starts with little memory and grows.
func newHolding(ctx context.Context, objects iter.Seq[*version], limit int64, selects bool) (*holding, error) {
	account := budget.From(ctx)
	if account == nil {
		return nil, nil
	}
	if selects {
		limit = 0 // the selected objects are known only after decoding
	}
	h := &holding{account: account, all: weigh(objects, limit)}
	if !selects || h.all.bytes <= firstSelected {
		return h, h.holdAll(ctx)
	}
	h.enough = firstSelected
	return h, hold(ctx, account, h.part(h.enough))
}

// part returns the memory for that many of the encoded bytes, by the average of all objects.
func (h *holding) part(bytes int64) int64 {
	return int64(float64(h.all.memory(h.account)) * float64(bytes) / float64(h.all.bytes))
}

// holdAll waits for the memory that all objects need.
func (h *holding) holdAll(ctx context.Context) error {
	h.enough = math.MaxInt64
	return hold(ctx, h.account, h.all.memory(h.account))
}

// room reports whether the account holds enough memory for one more selected object. If not, the caller must drop the
// selected objects and read them again after holdAll: a request must hold no memory while it waits for memory.
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
