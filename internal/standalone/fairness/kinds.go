package fairness

import (
	"cmp"
	"context"
	"reflect"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	facts "github.com/annexapi/annex/internal/model/facts/flowcontrol"

	"github.com/annexapi/annex/internal/model/define"
)

// Group returns the API group of flow schemas and priority levels.
func Group() define.Group {
	schemas := kind[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList]("flowschemas", setFlowSchemaDefaults, validateFlowSchema,
		func(s *flowcontrolv1.FlowSchema) (types []string) {
			for _, c := range s.Status.Conditions {
				types = append(types, string(c.Type))
			}
			return types
		}, flowSchemaColumns())
	schemas.RowOrder = byPrecedence
	return define.Group{Name: flowcontrolv1.GroupName, Kinds: []*define.Kind{
		schemas,
		kind[flowcontrolv1.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfigurationList](
			"prioritylevelconfigurations",
			setPriorityLevelDefaults,
			validatePriorityLevel,
			func(l *flowcontrolv1.PriorityLevelConfiguration) (types []string) {
				for _, c := range l.Status.Conditions {
					types = append(types, string(c.Type))
				}
				return types
			},
			priorityLevelColumns(),
		),
	}}
}

func kind[T, L any](
	resource string,
	fill func(*T),
	validate func(*T) field.ErrorList,
	conditions func(*T) []string,
	columns []define.Column,
) *define.Kind {
	return &define.Kind{
		Resource:      resource,
		ClusterScoped: true,
		Status:        true,
		Unconditional: true,
		Versions: []*define.Version{{
			Facts: facts.API, Type: reflect.TypeFor[T](), ListType: reflect.TypeFor[L](),
			Default: func(obj runtime.Object) { fill(any(obj).(*T)) },
		}},
		Validate: func(_ context.Context, obj runtime.Object) field.ErrorList { return validate(any(obj).(*T)) },
		ValidateStatus: func(_ context.Context, obj, _ runtime.Object) field.ErrorList {
			return validateConditions(conditions(any(obj).(*T)))
		},
		Columns:    columns,
		WithoutAge: true, // the age is one of the columns
	}
}

// byPrecedence is the order in which flow schemas are matched, in which kube-apiserver prints them.
func byPrecedence(a, b runtime.Object) int {
	one, other := a.(*flowcontrolv1.FlowSchema), b.(*flowcontrolv1.FlowSchema)
	return cmp.Or(cmp.Compare(one.Spec.MatchingPrecedence, other.Spec.MatchingPrecedence), cmp.Compare(one.Name, other.Name))
}

func setFlowSchemaDefaults(s *flowcontrolv1.FlowSchema) {
	if s.Spec.MatchingPrecedence == 0 {
		s.Spec.MatchingPrecedence = 1000
	}
}

func setPriorityLevelDefaults(l *flowcontrolv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		setDefault(&e.NominalConcurrencyShares, 0)
		setDefault(&e.LendablePercent, 0)
	}
	if m := l.Spec.Limited; m != nil {
		setDefault(&m.NominalConcurrencyShares, 30)
		setDefault(&m.LendablePercent, 0)
		if q := m.LimitResponse.Queuing; q != nil {
			for _, v := range []struct {
				field *int32
				value int32
			}{{&q.Queues, 64}, {&q.HandSize, 8}, {&q.QueueLengthLimit, 50}} {
				if *v.field == 0 {
					*v.field = v.value
				}
			}
		}
	}
}

func setDefault(field **int32, value int32) {
	if *field == nil {
		*field = &value
	}
}

// none is the placeholder for missing values in upstream's tables.
const none = "<none>"

// column returns a column with the description of its field.
func column[T any](name, path string, docs map[string]string, value func(T) any) define.Column {
	return define.Column{
		Name:        name,
		Type:        "string",
		Description: docs[path],
		Value:       func(obj runtime.Object) any { return value(any(obj).(T)) },
	}
}

func age() define.Column {
	return column("Age", "creationTimestamp", metav1.ObjectMeta{}.SwaggerDoc(), func(m metav1.Object) any { return m.GetCreationTimestamp() })
}

func flowSchemaColumns() []define.Column {
	type schema = *flowcontrolv1.FlowSchema
	docs := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return []define.Column{
		column(
			"PriorityLevel",
			"name",
			flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc(),
			func(s schema) any { return s.Spec.PriorityLevelConfiguration.Name },
		),
		column("MatchingPrecedence", "matchingPrecedence", docs, func(s schema) any { return s.Spec.MatchingPrecedence }),
		column("DistinguisherMethod", "distinguisherMethod", docs, func(s schema) any {
			if s.Spec.DistinguisherMethod == nil {
				return none
			}
			return string(s.Spec.DistinguisherMethod.Type)
		}),
		age(),
		column("MissingPL", "", map[string]string{"": "references a broken or non-existent PriorityLevelConfiguration"}, func(s schema) any {
			for _, c := range s.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					return string(c.Status)
				}
			}
			return "?"
		}),
	}
}

func priorityLevelColumns() []define.Column {
	type level = *flowcontrolv1.PriorityLevelConfiguration
	docs := flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	queuing := func(name, path string, value func(*flowcontrolv1.QueuingConfiguration) int32) define.Column {
		return column(name, path, docs, func(l level) any {
			if m := l.Spec.Limited; m != nil && m.LimitResponse.Queuing != nil {
				return value(m.LimitResponse.Queuing)
			}
			return none
		})
	}
	return []define.Column{
		column("Type", "type", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc(), func(l level) any { return string(l.Spec.Type) }),
		column(
			"NominalConcurrencyShares",
			"nominalConcurrencyShares",
			flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc(),
			func(l level) any {
				if m := l.Spec.Limited; m != nil && m.NominalConcurrencyShares != nil {
					return *m.NominalConcurrencyShares
				}
				return none
			},
		),
		queuing("Queues", "queues", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.Queues }),
		queuing("HandSize", "handSize", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.HandSize }),
		queuing("QueueLengthLimit", "queueLengthLimit", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.QueueLengthLimit }),
		age(),
	}
}
