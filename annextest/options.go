package annextest

import (
	"fmt"
	"math/rand"
	"reflect"
	"strings"

	"sigs.k8s.io/randfill"
)

// Option changes RoundTrip and GoldenObjects.
type Option func(*options)

type options struct {
	iterations int
	seed       int64
	fuzzes     []fuzz
	losses     []*loss
	// settled restarts the random source for each fuzzed value, so that a new or removed field does not change the
	// values of other fields.
	settled bool
}

// fuzz is a fuzz function for the values of one Go type.
type fuzz struct {
	of   reflect.Type
	call func(value reflect.Value, r *rand.Rand)
}

// loss is a field that a version is declared to lose.
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

// Iterations sets the number of random objects for each version and direction. The default is 300.
func Iterations(n int) Option {
	return func(o *options) { o.iterations = n }
}

// Seed sets the seed of the random objects. The default is always 1, so that a test that passes keeps passing.
func Seed(seed int64) Option {
	return func(o *options) { o.seed = seed }
}

// Fuzz sets a function that turns every random T, at any depth of an object, into a value that a client could have
// written: for example, a string of a required form, or fields that do not exclude each other. It is called when the
// whole value is filled in. Without it, strings are random words, or values of their enum.
func Fuzz[T any](change func(value *T, r *rand.Rand)) Option {
	return func(o *options) {
		o.fuzzes = append(o.fuzzes, fuzz{reflect.TypeFor[T](), func(value reflect.Value, r *rand.Rand) {
			change(value.Interface().(*T), r)
		}})
	}
}

// KnownLoss declares that the field at path, with all its content, is lost or changed by the conversion through
// version, which is written as in flunders.wardle.example.com/v1alpha1. Use the path that RoundTrip prints, such as
// spec.parts[*].count. The reason explains why clients can live without the value. A declared loss that does not
// occur also fails the test.
func KnownLoss(version, path, reason string) Option {
	return func(o *options) {
		o.losses = append(o.losses, &loss{version: version, path: path, reason: reason})
	}
}

// lost reports whether the loss of a field is declared.
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

// mistakes returns errors about declared losses that have no reason or did not occur.
func (o *options) mistakes() []string {
	var all []string
	for _, l := range o.losses {
		switch {
		case l.reason == "":
			all = append(all, fmt.Sprintf("KnownLoss(%q, %q): the reason is missing: explain why clients do not need "+
				"the field", l.version, l.path))
		case !l.seen:
			all = append(
				all,
				fmt.Sprintf("KnownLoss(%q, %q): the field is not lost: remove the option, or correct the version or path", l.version, l.path),
			)
		}
	}
	return all
}

// function adapts the fuzz function to randfill's form, func(*T, Continue).
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
