package rbac

import (
	"cmp"
	"math/bits"
	"slices"
)

// set is a set of numbers: words of 64 numbers each, in ascending order, without empty words. Nil is the empty set.
type set []word

type word struct {
	at   uint32 // the word holds the numbers from 64*at
	bits uint64
}

func single(n uint32) set { return set{{n / 64, 1 << (n % 64)}} }

func (s set) search(at uint32) (int, bool) {
	return slices.BinarySearchFunc(s, at, func(w word, at uint32) int { return cmp.Compare(w.at, at) })
}

func (s *set) add(n uint32) {
	at, bit := n/64, uint64(1)<<(n%64)
	i, ok := s.search(at)
	if !ok {
		*s = slices.Insert(*s, i, word{at: at})
	}
	(*s)[i].bits |= bit
}

func (s *set) remove(n uint32) {
	i, ok := s.search(n / 64)
	if !ok {
		return
	}
	(*s)[i].bits &^= 1 << (n % 64)
	if (*s)[i].bits == 0 {
		*s = slices.Delete(*s, i, i+1)
	}
	if len(*s) == 0 {
		*s = nil
	}
}

// common calls found with the members of both sets, in ascending order, until found returns false.
func (s set) common(t set, found func(n uint32) bool) {
	if len(s) > len(t) {
		s, t = t, s
	}
	for _, w := range s {
		i := 0
		if len(t) > 8 {
			i, _ = t.search(w.at)
		}
		for i < len(t) && t[i].at < w.at {
			i++
		}
		if t = t[i:]; len(t) == 0 {
			return
		}
		if t[0].at != w.at {
			continue
		}
		for both := w.bits & t[0].bits; both != 0; both &= both - 1 {
			if !found(w.at*64 + uint32(bits.TrailingZeros64(both))) {
				return
			}
		}
	}
}

// first returns the smallest member of both sets.
func (s set) first(t set) (n uint32, ok bool) {
	s.common(t, func(m uint32) bool {
		n, ok = m, true
		return false
	})
	return n, ok
}
