// Package metaopenapi holds the OpenAPI definitions of the types that every API
// refers to: meta/v1, quantities, scales. The staging modules do not ship them.
package metaopenapi

//go:generate go run -C ../../../cmd/annex k8s.io/kube-openapi/cmd/openapi-gen --go-header-file /dev/null -r /dev/null --output-dir ../../internal/convert/metaopenapi --output-pkg github.com/annexapi/annex/internal/convert/metaopenapi --output-file zz_generated.openapi.go k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr k8s.io/api/autoscaling/v1
