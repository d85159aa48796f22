// Package schemas helps to write OpenAPI definitions of Go types by hand, where generated ones would link those of a
// whole API group.
package schemas

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Struct returns the definition of a Go struct with the documentation doc, by the JSON names of fields. A property
// without a description gets that of doc.
func Struct(doc map[string]string, properties map[string]spec.Schema, dependencies ...string) common.OpenAPIDefinition {
	for name, property := range properties {
		if property.Description == "" {
			property.Description = doc[name]
			properties[name] = property
		}
	}
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: doc[""],
			Type:        []string{"object"},
			Properties:  properties,
		}},
		Dependencies: dependencies,
	}
}

// Object is Struct for a type with a metav1.TypeMeta, to whose properties it adds kind and apiVersion.
func Object(doc map[string]string, properties map[string]spec.Schema, dependencies ...string) common.OpenAPIDefinition {
	for _, name := range []string{"kind", "apiVersion"} {
		properties[name] = *spec.StringProperty().WithDescription(metav1.TypeMeta{}.SwaggerDoc()[name])
	}
	return Struct(doc, properties, dependencies...)
}

// Required returns a definition whose properties of these names are required.
func Required(definition common.OpenAPIDefinition, names ...string) common.OpenAPIDefinition {
	definition.Schema.Required = names
	return definition
}
