package annex

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
)

// VersionOf is a version of a kind whose hub is the Go type H, as Version builds
// it.
type VersionOf[H any] interface {
	versionOf(hub *H) *define.Version
}

// VersionBuilder describes the version of a kind with the Go type V, beside the
// hub H.
type VersionBuilder[V, H any] struct {
	version define.Version
}

// Version describes a version beside the hub. facts is the function API of the
// version's package. toHub and fromHub convert everything but TypeMeta and
// ObjectMeta, which are copied before they are called; what they are given they
// must not change, what they fill in is empty. A conversion that loses something
// loses it for every client that writes through this version. An error of toHub
// refuses what a client wrote as a bad request; fromHub should have none, for it
// makes an object unreadable in this version.
func Version[V, H any, PV object[V], PH object[H]](
	facts func() api.Facts,
	toHub func(in *V, hub *H) error,
	fromHub func(hub *H, out *V) error,
) *VersionBuilder[V, H] {
	b := &VersionBuilder[V, H]{define.Version{Facts: facts, Type: reflect.TypeFor[V]()}}
	if toHub != nil {
		b.version.ToHub = func(in, hub runtime.Object) error { return toHub(any(in).(*V), any(hub).(*H)) }
	}
	if fromHub != nil {
		b.version.FromHub = func(hub, out runtime.Object) error { return fromHub(any(hub).(*H), any(out).(*V)) }
	}
	return b
}

// GeneratedVersion describes a version whose conversions annex generate made: its package
// says +k8s:conversion-gen=PACKAGE with the package of the hub. Functions named Convert_A_To_B
// that are written there by hand are part of it. What Version says about toHub and
// fromHub goes for them, too, but that they copy ObjectMeta.
func GeneratedVersion[V, H any, PV object[V], PH object[H]](facts func() api.Facts) *VersionBuilder[V, H] {
	return &VersionBuilder[V, H]{define.Version{Facts: facts, Type: reflect.TypeFor[V](), Generated: true}}
}

// SameVersion describes a version for AlsoServedAs that has the Go type V of one of
// the kind's own versions, with its defaults and conversions: only the group differs,
// and perhaps the version's name.
func SameVersion[V, H any, PV object[V], PH object[H]](version string) *VersionBuilder[V, H] {
	return &VersionBuilder[V, H]{define.Version{
		Type:         reflect.TypeFor[V](),
		SameType:     true,
		GroupVersion: schema.GroupVersion{Version: version},
	}}
}

func (b *VersionBuilder[V, H]) versionOf(*H) *define.Version { return &b.version }

// Default fills in what a client of this version left out, after the generated
// defaults and before conversion to the hub.
func (b *VersionBuilder[V, H]) Default(fill func(obj *V)) *VersionBuilder[V, H] {
	b.version.Default = func(obj runtime.Object) { fill(any(obj).(*V)) }
	return b
}

// Validate checks what clients of this version write, in addition to the kind's
// Validate, so that messages can name this version's fields. It cannot be the only
// check: clients may write through another version.
func (b *VersionBuilder[V, H]) Validate(validate func(ctx context.Context, obj *V) field.ErrorList) *VersionBuilder[V, H] {
	b.version.Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*V))
	}
	return b
}

// Unserved keeps the version for reading objects stored in it, but serves it no
// longer.
func (b *VersionBuilder[V, H]) Unserved() *VersionBuilder[V, H] {
	b.version.Unserved = true
	return b
}

// Deprecated sends the warning with every use of the version.
func (b *VersionBuilder[V, H]) Deprecated(warning string) *VersionBuilder[V, H] {
	b.version.Deprecated = warning
	return b
}
