package protobuf_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
	"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/protobuf/shapes"
)

type message interface {
	Reset()
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// filler fills Shapes as an API client might. Values that protobuf cannot represent stay empty.
func filler(seed int64) *randfill.Filler {
	scheme := kruntime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{
			func(s *shapes.Scalars, c randfill.Continue) {
				c.FillNoCustom(s)
				s.Hidden, s.Unsaid = "", ""
			},
			func(t *shapes.Tree, c randfill.Continue) {
				if c.Rand.Intn(3) > 0 {
					c.FillNoCustom(t)
				}
			},
			func(m *metav1.TypeMeta, c randfill.Continue) {},
		}
	}), rand.NewSource(seed), serializer.NewCodecFactory(scheme)).NumElements(0, 2).MaxDepth(40)
}

func encode(t testing.TB, m message) []byte {
	t.Helper()
	data, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != m.Size() {
		t.Fatalf("%d bytes, Size says %d", len(data), m.Size())
	}
	return data
}

func TestUnmarshal_marshaled_isEqual(t *testing.T) {
	fill := filler(1)
	for range 300 {
		var shape, first, second shapes.Shape
		fill.Fill(&shape)
		data := encode(t, &shape)
		if err := first.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		// An empty list is decoded as nil, and nil bytes in a map as empty bytes. So only the second round must not
		// change anything.
		again := encode(t, &first)
		if err := second.Unmarshal(again); err != nil {
			t.Fatal(err)
		}
		if twice := encode(t, &second); !bytes.Equal(twice, again) {
			t.Fatalf("encoded again:\n%x\nfirst\n%x", twice, again)
		}
		if !reflect.DeepEqual(first, second) {
			t.Fatalf("decoded %#v, want %#v", second, first)
		}
	}
}

func TestUnmarshal_nilAndEmpty(t *testing.T) {
	for _, want := range []shapes.Tree{
		{Row: nil, Table: nil},
		{Row: shapes.Row{}, Table: shapes.Table{}},
		{Row: shapes.Row{"a"}, Table: shapes.Table{"a": {Name: "b"}}},
	} {
		var got shapes.Tree
		if err := got.Unmarshal(encode(t, &want)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %#v, want %#v", got, want)
		}
	}
	want := shapes.Maps{Pointers: map[string]*shapes.Leaf{"nil": nil, "empty": {}}, Bytes: map[string][]byte{"empty": {}}}
	var got shapes.Maps
	if err := got.Unmarshal(encode(t, &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
}

// These are the methods that upstream's serializer needs at least.
var _ interface {
	Reset()
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
} = (*shapes.Crate)(nil)

func TestMarshal_fieldNamedAsMethod(t *testing.T) {
	want := shapes.Crate{Size: "large", Inner: []shapes.Box{{Size: 1, Marshal: "m", Inside: &shapes.Box{Size: 2}}}}
	data, err := want.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var got shapes.Crate
	if err := got.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// schemaOf compiles the generated .proto file and its imports, as protoc does.
func schemaOf(t testing.TB) protoreflect.FileDescriptor {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	dirs := map[string]string{"github.com/annexapi/annex/cmd/annex/": filepath.Join(filepath.Dir(here), "../../..") + "/"}
	for _, module := range []string{"k8s.io/api", "k8s.io/apimachinery"} {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		dirs[module+"/"] = strings.TrimSpace(string(out)) + "/"
	}
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{
		Accessor: func(path string) (io.ReadCloser, error) {
			for prefix, dir := range dirs {
				if rest, ok := strings.CutPrefix(path, prefix); ok {
					return os.Open(dir + rest)
				}
			}
			return nil, os.ErrNotExist
		},
	}}
	files, err := compiler.Compile(
		t.Context(),
		"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/protobuf/shapes/"+protobuf.FileName,
	)
	if err != nil {
		t.Fatal(err)
	}
	return files[0]
}

// The .proto file and the methods agree: a reader that knows only the file finds a field for every byte, and its
// output is decoded to the same object.
func TestProtoFile_describesBytes(t *testing.T) {
	file := schemaOf(t)
	descriptor := file.Messages().ByName("Shape")
	fill := filler(2)
	for range 100 {
		var shape, want, got shapes.Shape
		fill.Fill(&shape)
		// A map in protobuf holds no nil.
		maps.DeleteFunc(shape.Maps.Pointers, func(_ string, leaf *shapes.Leaf) bool { return leaf == nil })
		maps.DeleteFunc(shape.Maps.Ports, func(_ int64, port *intstr.IntOrString) bool { return port == nil })
		data := encode(t, &shape)
		read := dynamicpb.NewMessage(descriptor)
		if err := proto.Unmarshal(data, read); err != nil {
			t.Fatal(err)
		}
		nothingUnknown(t, read)
		written, err := proto.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		if err := want.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		if err := got.Unmarshal(written); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v, want %#v", got, want)
		}
	}
}

func nothingUnknown(t *testing.T, m protoreflect.Message) {
	t.Helper()
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		t.Fatalf("%s: the .proto file does not know %x", m.Descriptor().FullName(), unknown)
	}
	each := func(f protoreflect.FieldDescriptor, v protoreflect.Value) {
		if f.Message() != nil {
			nothingUnknown(t, v.Message())
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { each(f.MapValue(), v); return true })
		case f.IsList():
			for i := range v.List().Len() {
				each(f, v.List().Get(i))
			}
		default:
			each(f, v)
		}
		return true
	})
}

// Lists of numbers that another writer has packed are decoded too.
func TestUnmarshal_packedNumbers(t *testing.T) {
	fields := schemaOf(t).Messages().ByName("Lists").Fields()
	var packed []byte
	add := func(name protoreflect.Name, value []byte) {
		number := fields.ByName(name).Number()
		packed = protowire.AppendBytes(protowire.AppendTag(packed, number, protowire.BytesType), value)
	}
	add("int32s", []byte{1, 0xac, 2})
	add("bools", []byte{1, 0})
	add("float32s", protowire.AppendFixed32(nil, 0x3f800000))
	add("float64s", protowire.AppendFixed64(nil, 0x4000000000000000))
	var got shapes.Lists
	if err := got.Unmarshal(packed); err != nil {
		t.Fatal(err)
	}
	want := shapes.Lists{Int32s: []int32{1, 300}, Bools: []bool{true, false}, Float32s: []float32{1}, Float64s: []float64{2}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := got.Unmarshal(packed[:len(packed)-1]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
}

func TestUnmarshal_hostileInput_isError(t *testing.T) {
	nested := func(depth int) []byte {
		var data []byte
		for range depth {
			data = protowire.AppendBytes([]byte{2<<3 | 2}, data) // Tree.left
		}
		return data
	}
	for name, tt := range map[string]struct {
		into message
		data []byte
		want string
	}{
		"cut in a key":           {new(shapes.Leaf), []byte{0x8a}, "unexpected EOF"},
		"cut in a length":        {new(shapes.Leaf), []byte{0x0a, 0x80}, "unexpected EOF"},
		"cut in a string":        {new(shapes.Leaf), []byte{0x0a, 5, 'a'}, "unexpected EOF"},
		"cut in a fixed number":  {new(shapes.Scalars), []byte{9<<3 | 5, 1, 2, 3}, "unexpected EOF"},
		"length beyond any":      {new(shapes.Leaf), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, "unexpected EOF"},
		"negative length":        {new(shapes.Leaf), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, "unexpected EOF"},
		"more than 64 bits":      {new(shapes.Leaf), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, "overflow"},
		"field zero":             {new(shapes.Leaf), []byte{0x02, 0}, "invalid field number"},
		"field beyond any":       {new(shapes.Leaf), []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0}, "invalid field number"},
		"reserved wire type":     {new(shapes.Leaf), []byte{2<<3 | 6}, "reserved wire type"},
		"end without a group":    {new(shapes.Leaf), []byte{2<<3 | 4}, "mismatching end group"},
		"group without an end":   {new(shapes.Leaf), []byte{2<<3 | 3, 0x08, 1}, "unexpected EOF"},
		"wrong wire type":        {new(shapes.Leaf), []byte{0x08, 1}, "Leaf: wrong wire type 0 of field 1"},
		"wrong type in a map":    {new(shapes.Maps), []byte{0x0a, 2, 0x08, 1}, "strings: wrong wire type 0 of field 1"},
		"too deep":               {new(shapes.Tree), nested(20000), "Tree: more than 10000 messages"},
		"groups too deep":        {new(shapes.Leaf), bytes.Repeat([]byte{2<<3 | 3}, 20000), "parse error"},
		"cut in a foreign field": {new(shapes.Others), []byte{0x0a, 2, 0x08, 0x80}, "EOF"},
	} {
		err := tt.into.Unmarshal(tt.data)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
		if strings.Contains(tt.want, "EOF") && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v is not io.ErrUnexpectedEOF", name, err)
		}
	}
	if err := new(shapes.Tree).Unmarshal(nested(9999)); err != nil {
		t.Errorf("9999 trees within each other: %v", err)
	}
}

func TestUnmarshal_unknownFields_areSkipped(t *testing.T) {
	var data []byte
	data = protowire.AppendVarint(protowire.AppendTag(data, 100, protowire.VarintType), 1<<60)
	data = protowire.AppendFixed32(protowire.AppendTag(data, 101, protowire.Fixed32Type), 1)
	data = protowire.AppendFixed64(protowire.AppendTag(data, 102, protowire.Fixed64Type), 1)
	data = protowire.AppendBytes(protowire.AppendTag(data, 103, protowire.BytesType), bytes.Repeat([]byte{1}, 300))
	data = protowire.AppendGroup(protowire.AppendTag(data, 104, protowire.StartGroupType), 104, bytes.Clone(data))
	data = append(data, 0x0a, 1, 'x')
	var got shapes.Leaf
	if err := got.Unmarshal(data); err != nil || got.Name != "x" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// FuzzUnmarshal looks for input that results in neither an object nor an error:
//
//	go test ./internal/generate/protobuf -run '^$' -fuzz FuzzUnmarshal -fuzztime 60s -fuzzminimizetime 20x
//
// A decoded object must be encoded to bytes that are decoded to the same object, and that a reader which knows only
// the .proto file accepts.
func FuzzUnmarshal(f *testing.F) {
	descriptor := schemaOf(f).Messages().ByName("Shape")
	for seed := range int64(20) {
		var shape shapes.Shape
		filler(seed).NilChance(0.6).Fill(&shape)
		data := encode(f, &shape)
		f.Add(data)
		f.Add(data[:len(data)*2/3])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second shapes.Shape
		if first.Unmarshal(data) != nil {
			return
		}
		if err := proto.Unmarshal(data, dynamicpb.NewMessage(descriptor)); err != nil {
			t.Fatalf("ours decoded what protobuf refuses: %v", err)
		}
		once := encode(t, &first)
		if err := second.Unmarshal(once); err != nil {
			t.Fatalf("ours does not decode what it has encoded: %v", err)
		}
		if twice := encode(t, &second); !bytes.Equal(once, twice) {
			t.Fatalf("encoded twice:\n%x\nonce\n%x", twice, once)
		}
	})
}
