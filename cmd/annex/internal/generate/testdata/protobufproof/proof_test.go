// Package proof compares generated protobuf methods with those that
// protoc-gen-gogo made of the same types. It is copied beside copies of the
// packages of k8s.io/api, and completed by a list of their types.
package proof

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"
)

type message interface {
	Reset()
	Size() int
	Marshal() ([]byte, error)
	MarshalTo([]byte) (int, error)
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// pair is one type twice. Both have the same fields, so that memory of one is
// memory of the other too.
type pair struct {
	name      string
	newTheirs func() message
	ours      func(theirs message) message
}

func filler(seed int64) *randfill.Filler {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	return fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), codecs).NilChance(0.3).NumElements(0, 3)
}

func objects() int {
	if n, err := strconv.Atoi(os.Getenv("ANNEX_PROTOBUF_OBJECTS")); err == nil {
		return n
	}
	return 20
}

// same reports how ours and gogo's methods differ on one object, or nothing.
func same(p pair, object, target message) error {
	want, err := object.Marshal()
	if err != nil {
		return fmt.Errorf("theirs: %w", err)
	}
	ours := p.ours(object)
	if got := ours.Size(); got != len(want) {
		return fmt.Errorf("size %d, want %d", got, len(want))
	}
	got, err := ours.Marshal()
	if err != nil {
		return fmt.Errorf("ours: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("bytes differ:\n%x\nwant\n%x", got, want)
	}
	room := make([]byte, len(want)+7)
	if n, err := ours.MarshalTo(room); err != nil || !bytes.Equal(room[:n], want) {
		return fmt.Errorf("MarshalTo wrote %x, %v", room[:n], err)
	}
	if n, err := ours.MarshalToSizedBuffer(room); err != nil || !bytes.Equal(room[len(room)-n:], want) {
		return fmt.Errorf("MarshalToSizedBuffer wrote %x, %v", room[len(room)-n:], err)
	}
	if err := decodesAlike(p, want, nil); err != nil {
		return err
	}
	// Into an object that holds something already, a message is merged.
	before, err := target.Marshal()
	if err != nil {
		return err
	}
	return decodesAlike(p, want, before)
}

// decodesAlike decodes data by both, on top of before.
func decodesAlike(p pair, data, before []byte) error {
	theirs, shadow := p.newTheirs(), p.newTheirs()
	ours := p.ours(shadow)
	if err := theirs.Unmarshal(before); err != nil {
		return err
	}
	if err := ours.Unmarshal(before); err != nil {
		return err
	}
	if err := theirs.Unmarshal(data); err != nil {
		return fmt.Errorf("theirs: %w", err)
	}
	if err := ours.Unmarshal(data); err != nil {
		return fmt.Errorf("ours: %w", err)
	}
	if !reflect.DeepEqual(shadow, theirs) {
		return fmt.Errorf("decoded\n%#v\nwant\n%#v", shadow, theirs)
	}
	ours.Reset()
	if !reflect.DeepEqual(shadow, p.newTheirs()) {
		return fmt.Errorf("reset left %#v", shadow)
	}
	return nil
}

func TestBytesAreThoseOfGogo(t *testing.T) {
	n, size := 0, 0
	for i, p := range pairs {
		fill := filler(int64(i))
		object, target := p.newTheirs(), p.newTheirs()
		for range objects() {
			fill.Fill(object)
			fill.Fill(target)
			if err := same(p, object, target); err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
			n, size = n+1, size+object.Size()
		}
		if err := same(p, p.newTheirs(), p.newTheirs()); err != nil {
			t.Fatalf("empty %s: %v", p.name, err)
		}
	}
	t.Logf("%d types, %d objects, %d bytes", len(pairs), n, size)
}

// FuzzUnmarshal feeds both decoders with whatever the fuzzer finds: neither may
// fail in another way than by an error, what ours takes gogo's must take, and to
// the same object, and what is decoded can be encoded.
func FuzzUnmarshal(f *testing.F) {
	for i, p := range pairs {
		fill := filler(int64(i))
		for range 3 {
			object := p.newTheirs()
			fill.Fill(object)
			data, err := object.Marshal()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint16(i), data)
			if len(data) > 3 {
				f.Add(uint16(i), data[:len(data)-3])
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, data []byte) {
		p := pairs[int(which)%len(pairs)]
		shadow := p.newTheirs()
		ours := p.ours(shadow)
		if ours.Unmarshal(data) != nil {
			return
		}
		theirs := p.newTheirs()
		if err := theirs.Unmarshal(data); err != nil {
			t.Fatalf("%s: theirs: %v, ours decoded", p.name, err)
		}
		// A NaN differs from itself, so it is the encoded form that is compared.
		got, err := ours.Marshal()
		if err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		want, err := theirs.Marshal()
		if err != nil {
			t.Fatalf("%s: theirs: %v", p.name, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%s: got %x, want %x", p.name, got, want)
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	benchmark(b, func(m message, data []byte) error { _, err := m.Marshal(); return err })
}

func BenchmarkUnmarshal(b *testing.B) {
	benchmark(b, func(m message, data []byte) error { m.Reset(); return m.Unmarshal(data) })
}

func benchmark(b *testing.B, do func(m message, data []byte) error) {
	for _, name := range []string{"core/v1.Pod", "core/v1.ConfigMap", "core/v1.Node", "core/v1.Secret"} {
		for _, p := range pairs {
			if p.name != name {
				continue
			}
			fill := filler(1).NumElements(2, 4).NilChance(0.2)
			theirs := p.newTheirs()
			fill.Fill(theirs)
			data, err := theirs.Marshal()
			if err != nil {
				b.Fatal(err)
			}
			for who, m := range map[string]message{"gogo": theirs, "annex": p.ours(theirs)} {
				b.Run(name+"/"+who, func(b *testing.B) {
					b.SetBytes(int64(len(data)))
					b.ReportAllocs()
					for b.Loop() {
						if err := do(m, data); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
