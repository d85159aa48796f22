package budget

import (
	"context"
	"sync"
)

// Price is the memory needed to make a response, beside the stored objects: bytes for each object, and bytes for each
// byte of its encoding.
type Price struct {
	Object int64
	Byte   float64
}

// Of returns the memory that a response with so many objects and encoded bytes needs, in bytes.
func (p Price) Of(objects, bytes int64) int64 {
	return objects*p.Object + int64(float64(bytes)*p.Byte)
}

// Account is the memory that one request holds of a budget. A nil account holds nothing and needs nothing. Its
// methods may be called concurrently.
type Account struct {
	budget *Budget
	caller Caller
	answer func() Price

	mu   sync.Mutex // held while the request waits
	in   int
	as   Caller // of the share: see Budget.lane
	held int64  // as it counts in the lane
	need int64  // as requested
	// often is set by CollectOften; nil otherwise.
	often *collections
}

// Account returns an account for a caller's request. answer returns the price of its response, and is called when the
// price is needed. Close must be called. The account of a nil budget is nil.
func (b *Budget) Account(caller Caller, answer func() Price) *Account {
	if b == nil {
		return nil
	}
	return &Account{budget: b, caller: caller, answer: answer}
}

// Answer returns the price of the request's response.
func (a *Account) Answer() Price {
	if a == nil {
		return Price{}
	}
	return a.answer()
}

// Hold makes sure that the account holds so many bytes for work, and waits for them if necessary. It releases only
// bytes on the wire: of consecutive steps, the largest need counts. On an error the account holds nothing. The error
// is a *BusyError if the request is rejected, else the cause of the context's end.
func (a *Account) Hold(ctx context.Context, bytes int64) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.grow(bytes) {
		return nil
	}
	in, as, share := b.lane(a.caller, bytes)
	if a.in != wire { // bytes on the wire exist while the request waits
		a.release()
	}
	err := b.await(ctx, in, as, share)
	a.release()
	if err == nil {
		a.set(in, as, share, bytes)
	}
	return err
}

// Wire makes the account hold exactly so many bytes, on the wire, because a client now has to send or read them. It
// waits for them if necessary; meanwhile the account holds nothing. On an error it holds nothing: errors are those of
// Hold.
func (a *Account) Wire(ctx context.Context, bytes int64) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.release()
	l, share := &b.lanes[wire], min(bytes, b.lanes[wire].limit(a.caller.Class))
	if !l.take(a.caller, share) {
		if err := b.await(ctx, wire, a.caller, share); err != nil {
			return err
		}
	}
	a.set(wire, a.caller, share, bytes)
	return nil
}

// leastSent is the minimum that a response written piece by piece holds, in bytes: its buffers.
const leastSent = 512 << 10

// Send moves a response that is written piece by piece to the wire, where a slow client delays only its own user. An
// account that holds more than a small part of the wire stays where it is. Errors are those of Wire.
func (a *Account) Send(ctx context.Context) error {
	if a == nil {
		return nil
	}
	if held := max(a.Held(), leastSent); held <= a.budget.lanes[wire].bytes/reserve {
		return a.Wire(ctx, held)
	}
	return nil
}

// TryHold is Hold without waiting: it changes nothing and returns false if the bytes are not available now.
func (a *Account) TryHold(bytes int64) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.grow(bytes)
}

// grow is TryHold with the budget's mu held.
func (a *Account) grow(bytes int64) bool {
	if a.in != wire && bytes <= a.need {
		return true
	}
	b := a.budget
	in, as, share := b.lane(a.caller, bytes)
	if in == a.in {
		if !b.lanes[in].take(as, share-a.held) {
			return false
		}
	} else {
		if !b.lanes[in].take(as, share) {
			return false
		}
		a.release()
	}
	a.set(in, as, share, bytes)
	return true
}

// set records the account's share, which has been taken. It needs the budget's mu.
func (a *Account) set(in int, as Caller, share, need int64) {
	a.in, a.as, a.held, a.need = in, as, share, need
}

// release returns the account's share. It needs the budget's mu.
func (a *Account) release() {
	a.budget.lanes[a.in].give(a.as, a.held)
	a.set(small, Caller{}, 0, 0)
}

// Held returns the number of bytes that the account holds, on the wire or for work.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// CollectOften makes garbage collections frequent until the account is closed, in a process with SpareCollections:
// the request produces much garbage beside the memory that it holds.
func (a *Account) CollectOften() {
	c := ofProcess.Load()
	if a == nil || c == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.often == nil {
		a.often = c
		c.begin(liveBytes())
	}
}

// Close releases the account's share. A second call does nothing, and a closed account can hold again.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.often != nil {
		a.often.end()
		a.often = nil
	}
	a.giveBack()
}

// GiveBack releases the account's share, but leaves CollectOften in effect.
func (a *Account) GiveBack() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveBack()
}

// giveBack needs the account's mu.
func (a *Account) giveBack() {
	if a.held == 0 {
		a.need = 0
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.release()
}

type accountKey struct{}

// NewContext returns a context that carries the account of a request.
func NewContext(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// From returns the account of the request of a context, nil if it has none: then the server itself is working.
func From(ctx context.Context) *Account {
	a, _ := ctx.Value(accountKey{}).(*Account)
	return a
}
