package fairness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

const (
	anything = "*"
	// maxQueues is the maximum number of queues of a priority level. maxHandEntropy is the number of hash bits that
	// are available for dealing a hand of queues.
	maxQueues      = 10_000_000
	maxHandEntropy = 60
)

// verbs are the valid verbs of a rule.
var verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

// validateFlowSchema returns the errors of a flow schema except for its metadata. Defaults have been set. All
// functions in this file use the paths, types and messages of kube-apiserver.
func validateFlowSchema(s *flowcontrolv1.FlowSchema) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	errs := validateFixed(s.Name, spec, fixedFlowSchemas())
	errs = append(errs, validateReference(spec.PriorityLevelConfiguration.Name, path.Child("priorityLevelConfiguration", "name"))...)
	precedence := path.Child("matchingPrecedence")
	switch p := spec.MatchingPrecedence; {
	case p <= 0:
		errs = append(errs, field.Invalid(precedence, p, "must be a positive value"))
	case p > flowcontrolv1.FlowSchemaMaxMatchingPrecedence:
		errs = append(
			errs,
			field.Invalid(precedence, p, fmt.Sprintf("must not be greater than %d", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)),
		)
	case p == 1 && s.Name != flowcontrolv1.FlowSchemaNameExempt:
		errs = append(errs, field.Invalid(precedence, p, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil {
		known := []flowcontrolv1.FlowDistinguisherMethodType{
			flowcontrolv1.FlowDistinguisherMethodByNamespaceType,
			flowcontrolv1.FlowDistinguisherMethodByUserType,
		}
		if !slices.Contains(known, m.Type) {
			errs = append(errs, field.NotSupported(path.Child("distinguisherMethod", "type"), goNames{m}, known))
		}
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], path.Child("rules").Index(i))...)
	}
	return errs
}

func validateReference(name string, path *field.Path) (errs field.ErrorList) {
	if name == "" {
		return field.ErrorList{field.Required(path, "must reference a priority level")}
	}
	for _, mistake := range validation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, mistake))
	}
	return errs
}

func validateRule(r *flowcontrolv1.PolicyRulesWithSubjects, path *field.Path) (errs field.ErrorList) {
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, validateSubject(&r.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, validateResourceRule(&r.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, validateNonResourceRule(&r.NonResourceRules[i], path.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

func validateSubject(s *flowcontrolv1.Subject, path *field.Path) (errs field.ErrorList) {
	kinds := []struct {
		kind  flowcontrolv1.SubjectKind
		name  string
		given bool
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil},
	}
	known := []flowcontrolv1.SubjectKind{
		flowcontrolv1.SubjectKindGroup,
		flowcontrolv1.SubjectKindServiceAccount,
		flowcontrolv1.SubjectKindUser,
	}
	if !slices.Contains(known, s.Kind) {
		return field.ErrorList{field.NotSupported(path.Child("kind"), s.Kind, known)}
	}
	for _, k := range kinds {
		switch {
		case k.kind == s.Kind && !k.given:
			errs = append(errs, field.Required(path.Child(k.name), fmt.Sprintf("%s is required when subject kind is '%s'", k.name, k.kind)))
		case k.kind != s.Kind && k.given:
			errs = append(errs, field.Forbidden(path.Child(k.name), fmt.Sprintf("%s is forbidden when subject kind is not '%s'", k.name, k.kind)))
		}
	}
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil && s.User.Name == "":
		errs = append(errs, field.Required(path.Child("user", "name"), ""))
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil && s.Group.Name == "":
		errs = append(errs, field.Required(path.Child("group", "name"), ""))
	case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
		errs = append(errs, validateServiceAccount(s.ServiceAccount, path.Child("serviceAccount"))...)
	}
	return errs
}

func validateServiceAccount(s *flowcontrolv1.ServiceAccountSubject, path *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if s.Name != anything {
		for _, mistake := range validation.ValidateServiceAccountName(s.Name, false) {
			errs = append(errs, field.Invalid(path.Child("name"), s.Name, mistake))
		}
	}
	if s.Namespace == "" {
		return append(errs, field.Required(path.Child("namespace"), "must specify namespace for service account"))
	}
	for _, mistake := range validation.ValidateNamespaceName(s.Namespace, false) {
		errs = append(errs, field.Invalid(path.Child("namespace"), s.Namespace, mistake))
	}
	return errs
}

// validateWords validates a list in which * must be the only element.
func validateWords(words []string, path *field.Path, missing, others string) field.ErrorList {
	switch {
	case len(words) == 0:
		return field.ErrorList{field.Required(path, missing)}
	case len(words) > 1 && slices.Contains(words, anything):
		return field.ErrorList{field.Invalid(path, words, "if '*' is present, must not specify other "+others)}
	}
	return nil
}

func validateVerbs(given []string, path *field.Path) field.ErrorList {
	errs := validateWords(given, path, "verbs must contain at least one value", "verbs")
	if len(errs) == 0 && given[0] != anything && slices.ContainsFunc(given, func(v string) bool { return !slices.Contains(verbs, v) }) {
		errs = append(errs, field.NotSupported(path, given, verbs))
	}
	return errs
}

func validateResourceRule(r *flowcontrolv1.ResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := slices.Concat(
		validateVerbs(r.Verbs, path.Child("verbs")),
		validateWords(r.APIGroups, path.Child("apiGroups"), "resource rules must supply at least one api group", "api groups"),
		validateWords(r.Resources, path.Child("resources"), "resource rules must supply at least one resource", "resources"))
	namespaces := path.Child("namespaces")
	if len(r.Namespaces) == 0 && r.ClusterScope {
		return errs
	}
	wrong := validateWords(
		r.Namespaces,
		namespaces,
		"resource rules that are not cluster scoped must supply at least one namespace",
		"namespaces",
	)
	if len(wrong) > 0 {
		return append(errs, wrong...)
	}
	for i, namespace := range r.Namespaces {
		if namespace == anything {
			continue
		}
		for _, mistake := range utilvalidation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(namespaces.Index(i), namespace, "each member of this list must be '*' or a DNS-1123 label; "+mistake))
		}
	}
	return errs
}

func validateNonResourceRule(r *flowcontrolv1.NonResourcePolicyRule, path *field.Path) field.ErrorList {
	errs, paths := validateVerbs(r.Verbs, path.Child("verbs")), path.Child("nonResourceURLs")
	wrong := validateWords(r.NonResourceURLs, paths, "nonResourceURLs must contain at least one value", "non-resource URLs")
	if len(wrong) > 0 {
		return append(errs, wrong...)
	}
	for i, p := range r.NonResourceURLs {
		if mistake := mistakeOfPath(p); mistake != "" && p != anything {
			errs = append(errs, field.Invalid(paths.Index(i), p, mistake))
		}
	}
	return errs
}

// mistakeOfPath returns the first error in a path, which may end in /*.
func mistakeOfPath(p string) string {
	switch begin := strings.TrimSuffix(p, "/*"); {
	case p == "":
		return "must not be empty"
	case strings.Contains(p, " "):
		return "must not contain white-space"
	case !strings.HasPrefix(p, "/"):
		return "must start with slash"
	case strings.Contains(p, "//"):
		return "must not contain double slash"
	case strings.Contains(begin, anything):
		return "wildcard can only do suffix matching"
	}
	return ""
}

// validatePriorityLevel returns the errors of a priority level.
func validatePriorityLevel(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	path, spec := field.NewPath("spec"), &l.Spec
	isExempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	var errs field.ErrorList
	kind := path.Child("type")
	if (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != isExempt {
		errs = append(errs, field.Invalid(kind, spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	if l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
		// Users may change how much it lends and how the rest is shared.
		without, want := spec.DeepCopy(), bootstrap.MandatoryPriorityLevelConfigurationExempt.Spec.DeepCopy()
		without.Exempt, want.Exempt = nil, nil
		if !apiequality.Semantic.DeepEqual(without, want) {
			errs = append(errs, field.Invalid(path, goNames{without}, "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value"))
		}
	} else {
		errs = append(errs, validateFixed(l.Name, spec, fixedPriorityLevels())...)
	}
	errs = append(errs, validateUnion(spec.Type, enablements, kind, path.Child("limited"), spec.Limited != nil)...)
	if spec.Exempt != nil && !isExempt {
		errs = append(errs, field.Forbidden(path.Child("exempt"), ""))
	}
	if spec.Exempt != nil && isExempt {
		errs = append(errs, validateShares(spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent, path.Child("exempt"))...)
	}
	if spec.Limited != nil && spec.Type == flowcontrolv1.PriorityLevelEnablementLimited {
		errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
	}
	return errs
}

var (
	enablements = []flowcontrolv1.PriorityLevelEnablement{
		flowcontrolv1.PriorityLevelEnablementExempt,
		flowcontrolv1.PriorityLevelEnablementLimited,
	}
	responses = []flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject}
)

// validateUnion validates the discriminator of a union with one member, which belongs to the types Limited and Queue.
func validateUnion[T ~string](given T, known []T, kind, member *field.Path, there bool) (errs field.ErrorList) {
	switch {
	case given == "":
		errs = append(errs, field.Required(kind, ""))
	case !slices.Contains(known, given):
		errs = append(errs, field.NotSupported(kind, given, known))
	}
	wanted := string(given) == string(flowcontrolv1.PriorityLevelEnablementLimited) ||
		string(given) == string(flowcontrolv1.LimitResponseTypeQueue)
	switch {
	case wanted && !there:
		errs = append(errs, field.Required(member, ""))
	case !wanted && there:
		errs = append(errs, field.Forbidden(member, ""))
	}
	return errs
}

func validateShares(shares, lendable *int32, path *field.Path) (errs field.ErrorList) {
	if shares != nil && *shares < 0 {
		errs = append(errs, field.Invalid(path.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(path.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, l.LendablePercent, path)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	response := path.Child("limitResponse")
	errs = append(
		errs,
		validateUnion(l.LimitResponse.Type, responses, response.Child("type"), response.Child("queuing"), l.LimitResponse.Queuing != nil)...)
	if q := l.LimitResponse.Queuing; q != nil && l.LimitResponse.Type == flowcontrolv1.LimitResponseTypeQueue {
		errs = append(errs, validateQueuing(q, response.Child("queuing"))...)
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, path *field.Path) (errs field.ErrorList) {
	const positive = "must be positive"
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, positive))
	}
	if q.Queues <= 0 {
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, positive))
	} else if q.Queues > maxQueues {
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	hand := path.Child("handSize")
	switch entropy := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(hand, q.HandSize, positive))
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(hand, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	case entropy > maxHandEntropy:
		errs = append(
			errs,
			field.Invalid(
				hand,
				q.HandSize,
				fmt.Sprintf(
					"required entropy bits of deckSize %d and handSize %d should not be greater than %d",
					q.Queues,
					q.HandSize,
					maxHandEntropy,
				),
			),
		)
	}
	return errs
}

// fixedFlowSchemas and fixedPriorityLevels return the specifications that no caller may change.
func fixedFlowSchemas() map[string]*flowcontrolv1.FlowSchemaSpec {
	fixed := map[string]*flowcontrolv1.FlowSchemaSpec{}
	for _, s := range bootstrap.MandatoryFlowSchemas {
		fixed[s.Name] = &s.Spec
	}
	return fixed
}

func fixedPriorityLevels() map[string]*flowcontrolv1.PriorityLevelConfigurationSpec {
	fixed := map[string]*flowcontrolv1.PriorityLevelConfigurationSpec{}
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		fixed[l.Name] = &l.Spec
	}
	return fixed
}

func validateFixed[T any](name string, spec *T, fixed map[string]*T) field.ErrorList {
	if want, ok := fixed[name]; ok && !apiequality.Semantic.DeepEqual(spec, want) {
		return field.ErrorList{field.Invalid(field.NewPath("spec"), goNames{spec}, fmt.Sprintf("spec of '%s' must equal the fixed value", name))}
	}
	return nil
}

// validateConditions returns the errors of the types of conditions.
func validateConditions(kinds []string) (errs field.ErrorList) {
	path := field.NewPath("status", "conditions")
	for i, kind := range kinds {
		switch at := path.Index(i).Child("type"); {
		case kind == "":
			errs = append(errs, field.Required(at, ""))
		case slices.Contains(kinds[:i], kind):
			errs = append(errs, field.Duplicate(at, kind))
		}
	}
	return errs
}

// goNames prints a value in errors with Go field names, as kube-apiserver prints its internal types.
type goNames struct{ value any }

// MarshalJSON implements json.Marshaler.
func (n goNames) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeGoNames(&b, reflect.ValueOf(n.value))
	return b.Bytes(), err
}

func writeGoNames(b *bytes.Buffer, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer, reflect.Slice:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return writeGoNames(b, v.Elem())
	case reflect.Slice:
		return writeAll(b, '[', ']', v.Len(), func(i int) error { return writeGoNames(b, v.Index(i)) })
	case reflect.Struct:
		return writeAll(b, '{', '}', v.NumField(), func(i int) error {
			fmt.Fprintf(b, "%q:", v.Type().Field(i).Name)
			return writeGoNames(b, v.Field(i))
		})
	}
	text, err := json.Marshal(v.Interface())
	b.Write(text)
	return err
}

func writeAll(b *bytes.Buffer, begin, end byte, n int, write func(i int) error) error {
	b.WriteByte(begin)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := write(i); err != nil {
			return err
		}
	}
	return b.WriteByte(end)
}
