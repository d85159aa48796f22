package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *check) affinity(at *field.Path, a *corev1.Affinity) {
	if a == nil {
		return
	}
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	if node := a.NodeAffinity; node != nil {
		at := at.Child("nodeAffinity")
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			c.nodeTerms(at.Child(required, "nodeSelectorTerms"), node.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
		}
		for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			c.weight(at.Child(preferred).Index(i).Child("weight"), term.Weight)
			c.nodeTerm(at.Child(preferred).Index(i).Child("preference"), &term.Preference, true)
		}
	}
	if pods := a.PodAffinity; pods != nil {
		at := at.Child("podAffinity")
		c.podTerms(at.Child(required), pods.RequiredDuringSchedulingIgnoredDuringExecution)
		c.weightedTerms(at.Child(preferred), pods.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pods := a.PodAntiAffinity; pods != nil {
		at := at.Child("podAntiAffinity")
		c.podTerms(at.Child(required), pods.RequiredDuringSchedulingIgnoredDuringExecution)
		c.weightedTerms(at.Child(preferred), pods.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (c *check) weight(at *field.Path, weight int32) {
	if weight < 1 || weight > 100 {
		c.invalid(at, weight, "must be in the range 1-100")
	}
}

func (c *check) nodeTerms(at *field.Path, terms []corev1.NodeSelectorTerm) {
	if len(terms) == 0 {
		c.required(at, "must have at least one node selector term")
	}
	for i := range terms {
		c.nodeTerm(at.Index(i), &terms[i], false)
	}
}

// nodeTerm validates a required or preferred property of nodes. A preferred one may have any value.
func (c *check) nodeTerm(at *field.Path, term *corev1.NodeSelectorTerm, preferred bool) {
	for i := range term.MatchExpressions {
		c.nodeExpression(at.Child("matchExpressions").Index(i), &term.MatchExpressions[i], preferred)
	}
	for i := range term.MatchFields {
		c.nodeField(at.Child("matchFields").Index(i), &term.MatchFields[i])
	}
}

func (c *check) nodeExpression(at *field.Path, e *corev1.NodeSelectorRequirement, anyValue bool) {
	values := at.Child("values")
	switch e.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(e.Values) == 0 {
			c.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(e.Values) > 0 {
			c.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(e.Values) != 1 {
			c.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		c.invalid(at.Child("operator"), e.Operator, "not a valid selector operator")
	}
	c.labelName(at.Child("key"), e.Key)
	if !anyValue {
		for i, value := range e.Values {
			c.each(values.Index(i), value, validation.IsValidLabelValue(value))
		}
	}
}

func (c *check) labelName(at *field.Path, name string) {
	c.add(metav1validation.ValidateLabelName(name, at)...)
}

func (c *check) nodeField(at *field.Path, f *corev1.NodeSelectorRequirement) {
	switch f.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(f.Values) != 1 {
			c.required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		c.invalid(at.Child("operator"), f.Operator, "not a valid selector operator")
	}
	if f.Key != metav1.ObjectNameField {
		c.invalid(at.Child("key"), f.Key, "not a valid field selector key")
		return
	}
	for i, value := range f.Values {
		c.each(at.Child("values").Index(i), value, subdomain(value))
	}
}

func (c *check) weightedTerms(at *field.Path, terms []corev1.WeightedPodAffinityTerm) {
	for i := range terms {
		c.weight(at.Index(i).Child("weight"), terms[i].Weight)
		c.podTerm(at.Index(i).Child("podAffinityTerm"), &terms[i].PodAffinityTerm)
	}
}

func (c *check) podTerms(at *field.Path, terms []corev1.PodAffinityTerm) {
	for i := range terms {
		c.podTerm(at.Index(i), &terms[i])
	}
}

func (c *check) podTerm(at *field.Path, term *corev1.PodAffinityTerm) {
	c.selector(at.Child("labelSelector"), term.LabelSelector)
	c.selector(at.Child("namespaceSelector"), term.NamespaceSelector)
	for _, name := range term.Namespaces {
		c.each(at.Child("namespace"), name, validation.IsDNS1123Label(name))
	}
	c.matchedKeys(at, term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector)
	if term.TopologyKey == "" {
		c.required(at.Child("topologyKey"), "can not be empty")
	}
	c.labelName(at.Child("topologyKey"), term.TopologyKey)
}

// matchedKeys validates label keys whose values are taken from the pod itself and become part of the selector.
func (c *check) matchedKeys(at *field.Path, match, mismatch []string, selector *metav1.LabelSelector) {
	c.labelKeys(at.Child("matchLabelKeys"), match, selector)
	c.labelKeys(at.Child("mismatchLabelKeys"), mismatch, selector)
	if selector != nil {
		known := sorted(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			if i := lastIndex(match, expression.Key); i >= 0 && slices.Contains(known, expression.Key) {
				c.invalid(at.Index(i), expression.Key, "exists in both matchLabelKeys and labelSelector")
			}
			known = append(known, expression.Key)
		}
	}
	for i, key := range match {
		if slices.Contains(mismatch, key) {
			c.invalid(at.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

func lastIndex(list []string, wanted string) int {
	for i, value := range slices.Backward(list) {
		if value == wanted {
			return i
		}
	}
	return -1
}

func (c *check) labelKeys(at *field.Path, keys []string, selector *metav1.LabelSelector) {
	switch {
	case len(keys) == 0:
	case selector == nil:
		c.forbidden(at, "must not be specified when labelSelector is not set")
	default:
		for i, key := range keys {
			c.labelName(at.Index(i), key)
		}
	}
}

func (c *check) topologySpread(at *field.Path) {
	const positive = "must be greater than zero"
	all := c.spec.TopologySpreadConstraints
	for i := range all {
		s, at := &all[i], at.Index(i)
		if s.MaxSkew <= 0 {
			c.invalid(at.Child("maxSkew"), int64(s.MaxSkew), positive)
		}
		if s.TopologyKey == "" {
			c.required(at.Child("topologyKey"), "can not be empty")
		}
		oneOf(c, at.Child("whenUnsatisfiable"), s.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		if slices.ContainsFunc(all[i+1:], func(other corev1.TopologySpreadConstraint) bool {
			return other.TopologyKey == s.TopologyKey && other.WhenUnsatisfiable == s.WhenUnsatisfiable
		}) {
			c.add(field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%s, %s}", s.TopologyKey, s.WhenUnsatisfiable)))
		}
		if s.MinDomains != nil {
			if *s.MinDomains <= 0 {
				c.invalid(at.Child("minDomains"), int64(*s.MinDomains), positive)
			}
			if s.WhenUnsatisfiable != corev1.DoNotSchedule {
				c.invalid(at.Child("minDomains"), *s.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, s.WhenUnsatisfiable))
			}
		}
		c.inclusion(at.Child("nodeAffinityPolicy"), s.NodeAffinityPolicy)
		c.inclusion(at.Child("nodeTaintsPolicy"), s.NodeTaintsPolicy)
		c.matchedKeys(at, s.MatchLabelKeys, nil, s.LabelSelector)
		c.selector(at.Child("labelSelector"), s.LabelSelector)
	}
}

func (c *check) inclusion(at *field.Path, policy *corev1.NodeInclusionPolicy) {
	if policy != nil {
		oneOf(c, at, *policy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
	}
}

func (c *check) tolerations(at *field.Path, tolerations []corev1.Toleration) {
	for i := range tolerations {
		c.toleration(at.Index(i), &tolerations[i])
	}
}

func (c *check) toleration(at *field.Path, t *corev1.Toleration) {
	operator, effect := at.Child("operator"), at.Child("effect")
	if t.Key != "" {
		c.labelName(at.Child("key"), t.Key)
	} else if t.Operator != corev1.TolerationOpExists {
		c.invalid(operator, t.Operator, `operator must be Exists when `+"`key`"+` is empty, which means "match all values and all keys"`)
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		c.invalid(effect, t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if wrong := validation.IsValidLabelValue(t.Value); len(wrong) > 0 {
			c.invalid(operator, t.Value, strings.Join(wrong, ";"))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			c.invalid(operator, t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		// These operators belong to a feature that is off, but the message lists them.
		c.add(field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{
			corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt,
		}))
	default:
		c.add(field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	if t.Effect != "" {
		oneOf(c, effect, t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
	}
}
