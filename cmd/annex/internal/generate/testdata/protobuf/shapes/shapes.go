package shapes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/shared"
)

// Shape embeds what an object does.
type Shape struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Scalars  Scalars  `json:"scalars"`
	Pointers Pointers `json:"pointers"`
	Lists    Lists    `json:"lists"`
	Maps     Maps     `json:"maps"`
	Others   Others   `json:"others"`
	Tree     *Tree    `json:"tree,omitempty"`
	Box      Box      `json:"box"`
	Boxes    []*Box   `json:"boxes,omitempty"`
	Tagged   Tagged   `json:"tagged"`
	Empty    Empty    `json:"empty"`
}

// Names of types of which there is no other form.
type (
	Color  string
	Amount int32
	Yes    bool
	Rate   float64
	Seal   []byte
	Colors []Color
)

// Scalars are always written.
type Scalars struct {
	String  string        `json:"string"`
	Bool    bool          `json:"bool"`
	Int     int           `json:"int"`
	Int32   int32         `json:"int32"`
	Int64   int64         `json:"int64"`
	Uint    uint          `json:"uint"`
	Uint32  uint32        `json:"uint32"`
	Uint64  uint64        `json:"uint64"`
	Float32 float32       `json:"float32"`
	Float64 float64       `json:"float64"`
	Bytes   []byte        `json:"bytes,omitempty"`
	Color   Color         `json:"color"`
	Amount  Amount        `json:"amount"`
	Yes     Yes           `json:"yes"`
	Rate    Rate          `json:"rate"`
	Seal    Seal          `json:"seal,omitempty"`
	Period  time.Duration `json:"period"`
	// A name in JSON that is none in protobuf.
	Ref string `json:"$ref"`
	// Not in JSON, and so not in protobuf.
	Hidden string `json:"-"`
	// In JSON only.
	Unsaid string `json:"unsaid" protobuf:"-"`
	// Without a tag at all.
	Bare string
}

// Pointers are written unless they are nil.
type Pointers struct {
	String  *string           `json:"string,omitempty"`
	Bool    *bool             `json:"bool,omitempty"`
	Int     *int              `json:"int,omitempty"`
	Int64   *int64            `json:"int64,omitempty"`
	Float32 *float32          `json:"float32,omitempty"`
	Float64 *float64          `json:"float64,omitempty"`
	Amount  *Amount           `json:"amount,omitempty"`
	Message *Leaf             `json:"message,omitempty"`
	Foreign *corev1.Container `json:"foreign,omitempty"`
}

// Lists are written an item at a time.
type Lists struct {
	Strings  []string                      `json:"strings,omitempty"`
	Bools    []bool                        `json:"bools,omitempty"`
	Int32s   []int32                       `json:"int32s,omitempty"`
	Uint64s  []uint64                      `json:"uint64s,omitempty"`
	Float32s []float32                     `json:"float32s,omitempty"`
	Float64s []float64                     `json:"float64s,omitempty"`
	Bytes    [][]byte                      `json:"bytes,omitempty"`
	Colors   Colors                        `json:"colors,omitempty"`
	Leaves   []Leaf                        `json:"leaves,omitempty"`
	Pointers []*Leaf                       `json:"pointers,omitempty"`
	Foreign  []corev1.LocalObjectReference `json:"foreign,omitempty"`
	Rows     []Row                         `json:"rows,omitempty"`
}

// Maps are written in the order of their keys.
type Maps struct {
	Strings  map[string]string                   `json:"strings,omitempty"`
	Colors   map[Color]Color                     `json:"colors,omitempty"`
	ByInt    map[int32]string                    `json:"byInt,omitempty"`
	ByUint   map[uint64]bool                     `json:"byUint,omitempty"`
	ByBool   map[bool]int64                      `json:"byBool,omitempty"`
	Floats   map[string]float64                  `json:"floats,omitempty"`
	Bytes    map[string][]byte                   `json:"bytes,omitempty"`
	Leaves   map[string]Leaf                     `json:"leaves,omitempty"`
	Pointers map[string]*Leaf                    `json:"pointers,omitempty"`
	Rows     map[string]Row                      `json:"rows,omitempty"`
	Limits   corev1.ResourceList                 `json:"limits,omitempty"`
	Foreign  map[string]shared.Address           `json:"foreign,omitempty"`
	Selected map[string]metav1.LabelSelector     `json:"selected,omitempty"`
	Raw      map[string]runtime.RawExtension     `json:"raw,omitempty"`
	Trees    map[string]Tree                     `json:"trees,omitempty"`
	Ports    map[int64]*intstr.IntOrString       `json:"ports,omitempty"`
	Times    map[corev1.ResourceName]metav1.Time `json:"times,omitempty"`
}

// Others are messages of other packages.
type Others struct {
	Time      metav1.Time             `json:"time"`
	Due       *metav1.Time            `json:"due,omitempty"`
	MicroTime metav1.MicroTime        `json:"microTime"`
	Duration  metav1.Duration         `json:"duration"`
	Quantity  resource.Quantity       `json:"quantity"`
	Budget    *resource.Quantity      `json:"budget,omitempty"`
	Port      intstr.IntOrString      `json:"port"`
	Raw       runtime.RawExtension    `json:"raw"`
	Fields    *metav1.FieldsV1        `json:"fields,omitempty"`
	Address   shared.Address          `json:"address"`
	Template  *corev1.PodTemplateSpec `json:"template,omitempty"`
	Moment    Moment                  `json:"moment"`
	// A struct that is inline in JSON is a message.
	Leaf `json:",inline"`
}

// Leaf has nothing below it.
type Leaf struct {
	Name string `json:"name"`
}

// Row is nil or empty, which a plain list cannot tell apart.
// +protobuf.nullable=true
type Row []string

// Table does the same for a map.
//
// +protobuf.nullable=true
type Table map[string]Leaf

// Tree may hold itself, however deep.
type Tree struct {
	Name     string          `json:"name"`
	Left     *Tree           `json:"left,omitempty"`
	Branches []Tree          `json:"branches,omitempty"`
	Named    map[string]Tree `json:"named,omitempty"`
	Twig     *Twig           `json:"twig,omitempty"`
	Row      Row             `json:"row,omitempty"`
	Table    Table           `json:"table,omitempty"`
}

// Box has fields of names that methods have, so the methods have others.
type Box struct {
	Size    int32  `json:"size"`
	Marshal string `json:"marshal"`
	Inside  *Box   `json:"inside,omitempty"`
}

// Crate is an object that cannot have the method Size, nor those that need it.
type Crate struct {
	metav1.TypeMeta `json:",inline"`

	Size  string `json:"size"`
	Inner []Box  `json:"inner,omitempty"`
}

// Twig is how a Tree holds a Tree by way of another type.
type Twig struct {
	Trees []*Tree `json:"trees,omitempty"`
}

// Tagged has numbers of its own, and some that follow them.
type Tagged struct {
	First  string `json:"first" protobuf:"bytes,5,opt,name=initial"`
	Second int32  `json:"second" protobuf:"varint,2,opt"`
	Large  Color  `json:"large" protobuf:"bytes,18999,opt,name=large,casttype=Color"`
	Third  string `json:"third"`
	Fourth string `json:"fourth"`
}

// Empty has no fields.
type Empty struct{}

// Plain is for Go only.
// +protobuf=false
type Plain struct {
	Shape map[string][]string
}

// Moment is written as a Leaf, by methods of its own.
// +protobuf.as=Leaf
// +protobuf.options.marshal=false
type Moment struct {
	At string
}
