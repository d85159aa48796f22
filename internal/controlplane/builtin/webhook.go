package builtin

import (
	"fmt"
	"reflect"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/annexapi/annex/internal/model/define"
	facts "github.com/annexapi/annex/internal/model/facts/admissionregistration"
)

const apiExtensions = "api-extensions"

func validatingWebhooks() *define.Kind {
	type configuration = admissionregistrationv1.ValidatingWebhookConfiguration
	return configurations[configuration, admissionregistrationv1.ValidatingWebhookConfigurationList]("validatingwebhookconfigurations",
		func(c *configuration) []admissionregistrationv1.ValidatingWebhook { return c.Webhooks }, ofValidating)
}

func mutatingWebhooks() *define.Kind {
	type configuration = admissionregistrationv1.MutatingWebhookConfiguration
	return configurations[configuration, admissionregistrationv1.MutatingWebhookConfigurationList]("mutatingwebhookconfigurations",
		func(c *configuration) []admissionregistrationv1.MutatingWebhook { return c.Webhooks }, ofMutating)
}

// configurations returns a kind with objects T and lists L, whose objects hold webhooks W.
func configurations[T, L, W any](plural string, webhooks func(*T) []W, of func(*W) hook) *define.Kind {
	hooks := func(c *T) []hook {
		all := webhooks(c)
		made := make([]hook, len(all))
		for i := range all {
			made[i] = of(&all[i])
		}
		return made
	}
	k := kind[T, L](
		plural,
		facts.API,
		configurationRules(hooks, func(c *T) any { return webhooks(c) }),
		integer(column("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration", func(c *T) any {
			return len(webhooks(c))
		})),
		age(),
	)
	k.ClusterScoped, k.WithoutGeneration, k.Categories = true, true, []string{apiExtensions}
	return k
}

// hook contains the common fields of webhooks of both kinds.
type hook struct {
	validating *admissionregistrationv1.ValidatingWebhook
	// reinvocation is nil for validating webhooks, which have no such field.
	reinvocation **admissionregistrationv1.ReinvocationPolicyType
	// defaults sets the defaults of the original webhook; validating may be a copy.
	defaults func()
}

func ofValidating(w *admissionregistrationv1.ValidatingWebhook) hook {
	return hook{validating: w, defaults: func() { fillHook(w) }}
}

func ofMutating(w *admissionregistrationv1.MutatingWebhook) hook {
	same := &admissionregistrationv1.ValidatingWebhook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
		NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects, TimeoutSeconds: w.TimeoutSeconds,
		AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
	return hook{validating: same, reinvocation: &w.ReinvocationPolicy, defaults: func() {
		fillHook(same)
		w.FailurePolicy, w.MatchPolicy, w.TimeoutSeconds = same.FailurePolicy, same.MatchPolicy, same.TimeoutSeconds
		w.NamespaceSelector, w.ObjectSelector = same.NamespaceSelector, same.ObjectSelector
		if w.ReinvocationPolicy == nil {
			w.ReinvocationPolicy = new(admissionregistrationv1.NeverReinvocationPolicy)
		}
	}}
}

func fillHook(w *admissionregistrationv1.ValidatingWebhook) {
	if w.FailurePolicy == nil {
		w.FailurePolicy = new(admissionregistrationv1.Fail)
	}
	if w.MatchPolicy == nil {
		w.MatchPolicy = new(admissionregistrationv1.Equivalent)
	}
	fillSelector(&w.NamespaceSelector)
	fillSelector(&w.ObjectSelector)
	if w.TimeoutSeconds == nil {
		w.TimeoutSeconds = new(int32(10))
	}
	if s := w.ClientConfig.Service; s != nil && s.Port == nil {
		s.Port = new(int32(443))
	}
	for i := range w.Rules {
		fillRule(&w.Rules[i].Rule)
	}
}

// configurationRules increments generations like kube-apiserver: a list that changes between nil and empty counts as
// a change.
func configurationRules[T any](hooks func(*T) []hook, list func(*T) any) rules[T] {
	object := func(c *T) metav1.Object { return any(c).(metav1.Object) }
	return rules[T]{
		create: func(c *T) { object(c).SetGeneration(1) },
		update: func(c, old *T) {
			if !reflect.DeepEqual(list(c), list(old)) {
				object(c).SetGeneration(object(old).GetGeneration() + 1)
			}
		},
		fill: func(c *T) {
			for _, h := range hooks(c) {
				h.defaults()
			}
		},
		validate: func(c *T) field.ErrorList { return validateHooks(hooks(c)) },
	}
}

// reviewVersions are the versions of admission.k8s.io with which webhooks are called.
var reviewVersions = []string{"v1", "v1beta1"}

func validateHooks(hooks []hook) field.ErrorList {
	var errs field.ErrorList
	var seen []string
	for i, h := range hooks {
		at := field.NewPath("webhooks").Index(i)
		errs = append(errs, validateHook(h, at)...)
		if name := h.validating.Name; name != "" && slices.Contains(seen, name) {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen = append(seen, h.validating.Name)
	}
	return errs
}

func validateHook(h hook, at *field.Path) field.ErrorList {
	w := h.validating
	errs := validation.IsFullyQualifiedName(at.Child("name"), w.Name)
	errs = append(errs, validateRules(w.Rules, at.Child("rules"))...)
	errs = append(
		errs,
		oneOf(w.FailurePolicy, false, at.Child("failurePolicy"), admissionregistrationv1.Fail, admissionregistrationv1.Ignore)...)
	errs = append(
		errs,
		oneOf(w.MatchPolicy, false, at.Child("matchPolicy"), admissionregistrationv1.Equivalent, admissionregistrationv1.Exact)...)
	if w.SideEffects == nil {
		errs = append(
			errs,
			field.Required(
				at.Child("sideEffects"),
				fmt.Sprintf(
					"must specify one of %s, %s",
					admissionregistrationv1.SideEffectClassNone,
					admissionregistrationv1.SideEffectClassNoneOnDryRun,
				),
			),
		)
	}
	errs = append(
		errs,
		oneOf(
			w.SideEffects,
			false,
			at.Child("sideEffects"),
			admissionregistrationv1.SideEffectClassNone,
			admissionregistrationv1.SideEffectClassNoneOnDryRun,
		)...)
	if s := w.TimeoutSeconds; s != nil && (*s < 1 || *s > 30) {
		errs = append(errs, field.Invalid(at.Child("timeoutSeconds"), *s, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validateSelector(w.NamespaceSelector, at.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(w.ObjectSelector, at.Child("objectSelector"))...)
	errs = append(errs, validateClient(&w.ClientConfig, at.Child("clientConfig"))...)
	errs = append(errs, validateReviewVersions(w.AdmissionReviewVersions, at.Child("admissionReviewVersions"))...)
	if h.reinvocation != nil {
		errs = append(
			errs,
			oneOf(
				*h.reinvocation,
				false,
				at.Child("reinvocationPolicy"),
				admissionregistrationv1.IfNeededReinvocationPolicy,
				admissionregistrationv1.NeverReinvocationPolicy,
			)...)
	}
	c := &compiler{Compiler: plainCompiler(), declared: plugincel.OptionalVariableDeclarations{HasAuthorizer: true}}
	return append(errs, validateMatchConditions(w.MatchConditions, c, at.Child("matchConditions"))...)
}

func validateClient(c *admissionregistrationv1.WebhookClientConfig, at *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(at, "exactly one of url or service is required")}
	case c.URL != nil:
		return webhook.ValidateWebhookURL(at.Child("url"), *c.URL, true)
	}
	port := int32(443)
	if c.Service.Port != nil {
		port = *c.Service.Port
	}
	return webhook.ValidateWebhookService(at.Child("service"), c.Service.Name, c.Service.Namespace, c.Service.Path, port)
}

func validateReviewVersions(versions []string, at *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	known := false
	for i, v := range versions {
		if slices.Contains(versions[:i], v) {
			errs = append(errs, field.Invalid(at.Index(i), v, "duplicate version"))
			continue
		}
		for _, msg := range validation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(at.Index(i), v, msg))
		}
		known = known || slices.Contains(reviewVersions, v)
	}
	if !known {
		errs = append(errs, field.Invalid(at, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}
