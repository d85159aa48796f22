package controlplane

import (
	"context"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex/internal/aggregate"
	"github.com/annexapi/annex/internal/crds"
	"github.com/annexapi/annex/internal/serve"
)

// follower is what is told of custom resources.
type follower interface {
	crds.Follower
	Run(ctx context.Context)
}

// localAPIServices keeps an APIService for each version that the server has, unless the kind is left
// out: then it is nil.
func localAPIServices(p serve.Plane) (follower, error) {
	if !slices.Contains(p.Versions, apiregistrationv1.SchemeGroupVersion) {
		return nil, nil
	}
	own := slices.DeleteFunc(append(p.Versions, apiextensionsv1.SchemeGroupVersion), func(v schema.GroupVersion) bool {
		return v.Group == apiregistrationv1.GroupName // as a kube-apiserver has none
	})
	return aggregate.NewLocal(p.Client, own)
}
