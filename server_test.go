package annex_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/facts/core"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/store/memory"
)

func TestNew_invalidDefinition_namesEveryMistake(t *testing.T) {
	kinds := func(kinds ...annex.Kind) annex.Server {
		return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: kinds}}}
	}
	hub := func() *annex.KindBuilder[v1.Widget] {
		return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)
	}
	beta := func() *annex.VersionBuilder[v1beta1.Widget, v1.Widget] {
		return annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)
	}
	accept := func(context.Context, *v1beta1.Widget) field.ErrorList { return nil }
	for name, test := range map[string]struct {
		server annex.Server
		want   []string
	}{
		"nothing at all": {annex.Server{}, []string{`Name ""`, "no groups"}},
		"a group without kinds": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com"}}},
			[]string{`group "shop.example.com": no kinds`},
		},
		"a bad group name": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "Shop", Kinds: []annex.Kind{hub()}}}},
			[]string{`group "Shop": a lowercase RFC 1123 subdomain`, `generated for group "shop.example.com"`},
		},
		"a group of Kubernetes": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "authorization.k8s.io", Kinds: []annex.Kind{hub()}}}},
			[]string{`group "authorization.k8s.io": reserved: every server serves this group`},
		},
		"the core group by its nickname": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "core", Kinds: []annex.Kind{hub()}}}},
			[]string{`group "core": this name means the group without a name: use an empty name`},
		},
		"a group without a name": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Kinds: []annex.Kind{hub()}}}},
			[]string{`kind Widget (widgets), version v1: package github.com/annexapi/annex/internal/testing/shop/v1 is generated for group ` +
				`"shop.example.com"`},
		},
		"namespaces": {
			annex.Server{Name: "shop", Groups: []annex.Group{{Kinds: []annex.Kind{annex.KindOf[corev1.Namespace,
				corev1.NamespaceList]("namespaces", core.API)}}}},
			[]string{`kind Namespace (namespaces): every server has namespaces already`},
		},
		"another version of the core group": {
			kinds(hub().AlsoServedAs("", "widgets", annex.SameVersion[v1.Widget, v1.Widget]("v2"))),
			[]string{"the core group is served in version v1 only, not in v2"},
		},
		"a group twice": {
			annex.Server{Name: "shop", Groups: []annex.Group{
				{Name: "shop.example.com", Kinds: []annex.Kind{hub()}},
				{Name: "shop.example.com", Kinds: []annex.Kind{annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API)}},
			}},
			[]string{`group "shop.example.com": declared twice`},
		},
		"a nil kind":        {kinds(nil), []string{"kind 0 is nil"}},
		"a duplicate":       {kinds(hub(), hub()), []string{"duplicate resource: widgets.shop.example.com", "duplicate kind"}},
		"a bad resource":    {kinds(annex.KindOf[v1.Widget, v1.WidgetList]("Widgets!", v1.API)), []string{`resource "Widgets!"`}},
		"a bad short name":  {kinds(hub().ShortNames("W D")), []string{`name "W D"`}},
		"no generated code": {kinds(annex.KindOf[v1.Widget, v1.WidgetList]("widgets", nil)), []string{"run annex generate"}},
		"the wrong list type": {
			kinds(annex.KindOf[v1.Widget, v1.ShelfList]("widgets", v1.API)),
			[]string{"wrong list type: v1.ShelfList is not the list of v1.Widget, v1.WidgetList is"},
		},
		"a version twice": {kinds(hub().Versions(beta(), beta())), []string{"version v1beta1: declared twice"}},
		"a missing conversion": {
			kinds(hub().Versions(annex.Version[v1beta1.Widget, v1.Widget](v1beta1.API, v1beta1.WidgetToHub, nil))),
			[]string{"version v1beta1: missing conversion"},
		},
		"facts of another package": {
			kinds(hub().Versions(annex.Version(v1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub))),
			[]string{"version v1: declared twice", "does not register Widget"},
		},
		"an unknown stored version": {kinds(hub().StoredAs("v2")), []string{`StoredAs("v2"): unknown version; declared versions: v1`}},
		"a hook on an unserved version": {kinds(hub().Versions(beta().Unserved().Validate(accept))), []string{"Validate on an unserved " +
			"version never runs"}},
		"an unserved and deprecated version": {kinds(hub().Versions(beta().Unserved().Deprecated("old"))), []string{"both unserved and " +
			"deprecated"}},
		"a status hook without status": {
			kinds(hub().WithoutStatus().ValidateStatus(func(context.Context, *v1.Widget, *v1.Widget) field.ErrorList { return nil })),
			[]string{"ValidateStatus never runs"},
		},
		"a scale of nothing": {
			kinds(hub().Scale(".spec.size", ".spec.replicas", ".status.nothing")),
			[]string{"Scale SpecReplicas: .spec.size must be a field of type int32 or int64 in version v1", "Scale StatusReplicas: path " +
				".spec.replicas does " +
				"not begin in .status", "Scale Selector: .status.nothing"},
		},
		"no grace period to end": {kinds(hub().DeleteAfterGracePeriod()), []string{"GracePeriod must be a number of seconds, at " +
			"least one, not 0s"}},
		"a grace period of half seconds": {kinds(hub().GracePeriod(1500 * time.Millisecond)), []string{"not 1.5s"}},
		"bad columns": {
			kinds(hub().Columns(annex.Column[v1.Widget]{Name: "A", Type: "text"}, annex.Column[v1.Widget]{Name: "a"})),
			[]string{`type "text" must be`, `column "A" has no Value`, `column "a": names must be set and unique`},
		},
		"an index of no selectable field": {
			kinds(hub().IndexFields("spec.size")),
			[]string{`IndexFields("spec.size"): unknown selectable field: declare it with SelectableField`},
		},
		"indexes twice, and of no label": {
			kinds(hub().IndexLabels("tier", "a b", "tier")),
			[]string{`IndexLabels("a b")`, `IndexLabels("tier"): indexed twice`},
		},
		"a selectable field that is not there": {
			kinds(hub().SelectableField("spec.colour", func(*v1.Widget) string { return "" })),
			[]string{`selectable field "spec.colour" does not exist in version v1: Go type v1.WidgetSpec has no field "colour"; it has `},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := annex.New(t.Context(), test.server, annex.Options{Storage: memory.Storage()})
			if err == nil {
				t.Fatal("no error")
			}
			if !errors.As(err, new(*annex.ConfigError)) {
				t.Errorf("error is no ConfigError: %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in:\n%v", want, err)
				}
			}
		})
	}
}

func TestNew_noStorage_isRefused(t *testing.T) {
	t.Parallel()
	_, err := annex.New(t.Context(), shopServer(), annex.Options{DataDir: t.TempDir()})
	if mistake := (*annex.ConfigError)(nil); !errors.As(err, &mistake) {
		t.Fatalf("no *ConfigError: %v", err)
	}
	for _, part := range []string{"Options.Storage is missing", "embedded.Dir", "store/embedded", "memory.Storage()", "store/memory"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: want %s in it", err, part)
		}
	}
}

func TestDefine(t *testing.T) {
	t.Parallel()
	if _, err := annex.Define(annex.Server{Name: "Shop"}); !errors.As(err, new(*annex.ConfigError)) {
		t.Errorf("a wrong definition: %v", err)
	}
	if definition, err := annex.Define(shopServer()); err != nil || definition == nil {
		t.Errorf("%v, %v", definition, err)
	}
}

func shopServer() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{
		Name: "shop.example.com", Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
	}}}
}
