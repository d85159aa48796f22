package upstream

import (
	"slices"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/define"
)

// longActions are the endpoints of actions whose response is an operation.
type longActions map[endpoint]bool

func longActionsOf(s *define.Server) longActions {
	all := longActions{}
	for _, k := range s.Kinds() {
		for _, sub := range k.CustomSubresources {
			if sub.Long == nil {
				continue
			}
			for _, v := range k.Versions {
				all[endpoint{v.GroupVersion.WithResource(k.Resource), sub.Name}] = true
			}
		}
	}
	return all
}

const (
	waitParameter   = "wait"
	waitDescription = "Time to wait for the end of the operation, such as 30s. Then the server answers with the current state of the " +
		"operation. Defaults to 0s, which does not wait."
)

// describeV2 adds the parameter wait to OpenAPI v2.
func (l longActions) describeV2(doc *spec.Swagger) (*spec.Swagger, error) {
	for path, item := range doc.Paths.Paths {
		if l[endpointOf(path)] && item.Post != nil {
			parameter := spec.Parameter{
				ParamProps:   spec.ParamProps{Name: waitParameter, In: "query", Description: waitDescription},
				SimpleSchema: spec.SimpleSchema{Type: "string"},
			}
			item.Post.Parameters = append(slices.Clone(item.Post.Parameters), parameter)
		}
	}
	return doc, nil
}

// describeV3 is describeV2 for OpenAPI v3.
func (l longActions) describeV3(doc *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	for path, item := range doc.Paths.Paths {
		if l[endpointOf(path)] && item.Post != nil {
			parameter := &spec3.Parameter{ParameterProps: spec3.ParameterProps{
				Name: waitParameter, In: "query", Description: waitDescription, Schema: spec.StringProperty(),
			}}
			item.Post.Parameters = append(slices.Clone(item.Post.Parameters), parameter)
		}
	}
	return doc, nil
}

// inTurn returns a function that applies corrections to a document one after the other.
func inTurn[D any](corrections ...func(*D) (*D, error)) func(*D) (*D, error) {
	return func(doc *D) (*D, error) {
		var err error
		for _, correct := range corrections {
			if doc, err = correct(doc); err != nil {
				return nil, err
			}
		}
		return doc, nil
	}
}
