package annextest

import (
	"fmt"
	"math/rand"
	"reflect"
	"strings"

	"sigs.k8s.io/randfill"
)

// Option changes what RoundTrip and GoldenObjects do.
type Option func(*options)

type options struct {
	iterations int
	seed       int64
	fuzzes     []fuzz
	losses     []*loss
	// settled has every value fuzzed as if it were the first, so that a field more
	// or less elsewhere does not change how.
	settled bool
}

// fuzz is a function for the values of one Go type.
type fuzz struct {
	of   reflect.Type
	call func(value reflect.Value, r *rand.Rand)
}

// loss is a field that a version is known not to keep.
type loss struct {
	version, path, reason string
	seen                  bool
}

func compile(opts []Option) *options {
	o := &options{iterations: 300, seed: 1}
	for _, option := range opts {
		option(o)
	}
	return o
}

// Iterations is the number of random objects for each version and direction. The
// default is 300.
func Iterations(n int) Option {
	return func(o *options) { o.iterations = n }
}

// Seed chooses other random objects. The default is 1, always the same, so that a
// test that passes goes on to pass.
func Seed(seed int64) Option {
	return func(o *options) { o.seed = seed }
}

// Fuzz is the fuzzer of a Go type: it changes every random T, wherever in an object it is,
// into one that a client could have written: where a string must have a form, say, or one field excludes
// another. It is called when all of the value is filled in. Without it, strings are
// words, and those of an enum are its values.
func Fuzz[T any](change func(value *T, r *rand.Rand)) Option {
	return func(o *options) {
		o.fuzzes = append(o.fuzzes, fuzz{reflect.TypeFor[T](), func(value reflect.Value, r *rand.Rand) {
			change(value.Interface().(*T), r)
		}})
	}
}

// KnownLoss declares that the value of the field at path is lost or changed on a way
// through version, which is written as in flunders.wardle.example.com/v1alpha1. The path is one
// that RoundTrip prints, such as spec.parts[*].count; what is in the field goes with
// it. Reason says why clients can live with that. A declared loss that does not happen
// fails the test, too.
func KnownLoss(version, path, reason string) Option {
	return func(o *options) {
		o.losses = append(o.losses, &loss{version: version, path: path, reason: reason})
	}
}

// lost says whether the loss of a field is declared.
func (o *options) lost(version, path string) bool {
	for _, l := range o.losses {
		if l.version != version {
			continue
		}
		if rest, ok := strings.CutPrefix(path, l.path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			l.seen = true
			return true
		}
	}
	return false
}

// mistakes are the declared losses that are none.
func (o *options) mistakes() []string {
	var all []string
	for _, l := range o.losses {
		switch {
		case l.reason == "":
			all = append(all, fmt.Sprintf("KnownLoss(%q, %q): give the reason why clients can live without it", l.version, l.path))
		case !l.seen:
			all = append(
				all,
				fmt.Sprintf("KnownLoss(%q, %q): it is not lost; remove the option, or correct the version or path", l.version, l.path),
			)
		}
	}
	return all
}

// function returns the function as randfill wants it: func(*T, Continue).
func (f fuzz) function(before reflect.Value, o *options) reflect.Value {
	signature := reflect.FuncOf([]reflect.Type{reflect.PointerTo(f.of), reflect.TypeFor[randfill.Continue]()}, nil, false)
	return reflect.MakeFunc(signature, func(args []reflect.Value) []reflect.Value {
		c := args[1].Interface().(randfill.Continue)
		if before.IsValid() {
			before.Call(args)
		} else {
			c.FillNoCustom(args[0].Interface())
		}
		r := c.Rand
		if o.settled {
			r = rand.New(rand.NewSource(o.seed))
		}
		f.call(args[0], r)
		return nil
	})
}
