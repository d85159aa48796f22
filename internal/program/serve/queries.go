package serve

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/history"
	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/registry"
)

// queries has the resources of the query API and the history.
type queries struct {
	plan       *plan.Plan
	schemes    *convert.Machinery
	stores     *registry.Stores
	namespaces modeStorage
}

// addTo adds the query API and the history for the definition's kinds, namespaces, and the resources of aggregated servers.
func (q queries) addTo(config *upstream.Config) error {
	var own []*query.Resource
	if config.BuiltIn[corev1.SchemeGroupVersion] != nil {
		encode, err := q.schemes.ItemEncoder(corev1.SchemeGroupVersion.WithKind("Namespace"), true)
		if err != nil {
			return err
		}
		namespaces := &query.Resource{
			GroupVersionResource: corev1.SchemeGroupVersion.WithResource(coreapi.Resource.Resource),
			Kind:                 "Namespace", Watched: true, Indexed: q.keepsOrders(nil), Encode: encode, Model: &corev1.Namespace{},
		}
		if namespaces.Table, err = query.NewTable(namespaces, coreapi.Table(), &corev1.NamespaceList{}, metadataColumn); err != nil {
			return err
		}
		own = append(own, namespaces)
	}
	for _, k := range config.Kinds {
		verbs, _ := upstream.Served(k)
		if !slices.Contains(verbs, "list") {
			continue
		}
		for _, v := range k.Definition.Versions {
			if v.Unserved {
				continue
			}
			resource, err := q.queried(k, v, slices.Contains(verbs, "watch"))
			if err != nil {
				return err
			}
			own = append(own, resource)
		}
	}
	beside := func(path string) bool {
		return slices.ContainsFunc(q.plan.Definition.Handlers, func(h define.Handler) bool { return h.Answers(path) })
	}
	config.NewHistory = func(delegated func() []*query.Resource) *history.API {
		return history.New(history.Config{
			Resources:  func() []*query.Resource { return slices.Concat(own, delegated()) },
			Authorizer: config.Authorizer,
			Secrets:    q.plan.Options.HistoryOfSecrets,
			Beside:     beside,
		})
	}
	if q.plan.QueryPrefix == "" {
		return nil
	}
	config.NewQueries = func(delegated func() []*query.Resource) *query.API {
		return query.New(query.Config{
			Prefix:     q.plan.QueryPrefix,
			Resources:  func() []*query.Resource { return slices.Concat(own, delegated()) },
			Authorizer: config.Authorizer,
			Namespaces: q.namespaces.namespaceNames,
			Beside:     beside,
			Union:      q.namespaces.mostNamespaces(),

			PastSecrets: q.plan.Options.HistoryOfSecrets,
		})
	}
	return nil
}

// queried returns a version of a kind for the query API.
func (q queries) queried(served *registry.Kind, v *define.Version, watched bool) (*query.Resource, error) {
	k := served.Definition
	resource := &query.Resource{
		GroupVersionResource: v.GroupVersion.WithResource(k.Resource),
		Kind:                 v.Type.Name(),
		Namespaced:           !k.ClusterScoped,
		Model:                v.New(),
	}
	primary := k.Primary()
	if primary.CustomStorage != nil {
		return resource, nil
	}
	encode, err := q.schemes.ItemEncoder(v.GroupVersionKind(), true)
	if err != nil {
		return nil, fmt.Errorf("queries of %s: %w", resource.Resource, err)
	}
	resource.Encode, resource.Watched, resource.Indexed = encode, watched, q.keepsOrders(primary)
	resource.Fields = queryFields(primary)
	if table := served.Table(); table != nil {
		if resource.Table, err = query.NewTable(resource, table, k.Hub().NewList(), columnField(primary)); err != nil {
			return nil, err
		}
	}
	return resource, nil
}

// columnField returns the fields that the columns of a kind are sorted by.
func columnField(k *define.Kind) func(metav1.TableColumnDefinition) (*ordered.Field, bool) {
	return func(d metav1.TableColumnDefinition) (*ordered.Field, bool) {
		if value, declared := registry.ColumnValue(k, d.Name); declared {
			return query.ColumnField(d, "", value), true
		}
		return metadataColumn(d)
	}
}

func metadataColumn(d metav1.TableColumnDefinition) (*ordered.Field, bool) {
	f := query.MetadataColumn(d)
	return f, f != nil
}

// queryFields returns the fields that a kind declares for queries, and its selectable fields.
func queryFields(k *define.Kind) []ordered.Field {
	all := slices.Clone(k.QueryFields)
	for _, f := range k.Selectable {
		if !ordered.Reserved(f.Path) && !slices.ContainsFunc(all, func(other ordered.Field) bool { return other.Name == f.Path }) {
			all = append(
				all,
				ordered.Field{Name: f.Path, Type: ordered.String, Sortable: true, Get: func(o runtime.Object) any { return f.Value(o) }},
			)
		}
	}
	return all
}

// keepsOrders reports whether the storage of a kind, nil being namespaces, keeps sorted orders for queries. Queries
// of other kinds list and sort.
func (q queries) keepsOrders(k *define.Kind) bool {
	resource := coreapi.Resource
	if k != nil {
		if k.Source != nil {
			return true
		}
		resource = k.GroupResource()
	}
	opened, err := q.stores.Opened(resource)
	if err != nil {
		return false
	}
	_, keeps := opened.(ordered.Querier)
	return keeps
}
