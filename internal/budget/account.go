package budget

import (
	"context"
	"sync"
)

// Price is what an answer needs while it is made, beside what is stored: so many bytes
// for each object, and so many for each byte of its encoding.
type Price struct {
	Object int64
	Byte   float64
}

// Of returns what an answer with so many objects and encoded bytes needs.
func (p Price) Of(objects, bytes int64) int64 {
	return objects*p.Object + int64(float64(bytes)*p.Byte)
}

// Account is what one request holds of a budget. A nil account holds nothing and needs
// nothing. Its methods may be called concurrently.
type Account struct {
	budget *Budget
	answer func() Price

	mu   sync.Mutex // held while the request waits
	in   int
	held int64 // as it counts in the lane
	need int64 // as it was asked for
}

// Account returns an account for a request whose answer has a price, which is asked for
// when it is needed. Close must be called. It is nil for a nil budget.
func (b *Budget) Account(answer func() Price) *Account {
	if b == nil {
		return nil
	}
	return &Account{budget: b, answer: answer}
}

// Answer is the price of the request's answer.
func (a *Account) Answer() Price {
	if a == nil {
		return Price{}
	}
	return a.answer()
}

// Hold makes sure that the account holds so many bytes, and waits for them if need be.
// It gives nothing back: what a request does one after the other needs as much as the
// largest of it. On an error the account holds nothing: a *BusyError if the request is
// refused, else the cause of the context's end.
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
	b.give(a.in, a.held)
	a.held, a.need = 0, 0
	in, share := b.lane(bytes)
	if !b.take(in, share) {
		if err := b.await(ctx, in, share); err != nil {
			return err
		}
	}
	a.in, a.held, a.need = in, share, bytes
	return nil
}

// TryHold is Hold without waiting: it changes nothing and is false if the bytes are not
// to be had now.
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

// grow is TryHold with the budget's mu.
func (a *Account) grow(bytes int64) bool {
	if bytes <= a.need {
		return true
	}
	b := a.budget
	in, share := b.lane(bytes)
	if in == a.in {
		if !b.take(in, share-a.held) {
			return false
		}
	} else {
		if !b.take(in, share) {
			return false
		}
		b.give(a.in, a.held)
	}
	a.in, a.held, a.need = in, share, bytes
	return true
}

// Close gives back what the account holds. Closing twice is a no-op, and an account that
// is closed can hold again.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.give(a.in, a.held)
	a.held, a.need = 0, 0
}

type accountKey struct{}

// NewContext returns a context that carries the account of a request.
func NewContext(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// From returns the account of the request that a context is of, nil if it has none: then
// it is the server itself that works.
func From(ctx context.Context) *Account {
	a, _ := ctx.Value(accountKey{}).(*Account)
	return a
}
