package builtin

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/apiregistration"
)

type apiService = apiregistrationv1.APIService

// apiServices is the kind that registers versions of groups. Package aggregate writes the objects of the server's own
// versions.
func apiServices() *define.Kind {
	k := kind[apiService, apiregistrationv1.APIServiceList]("apiservices", apiregistration.API,
		rules[apiService]{
			fill: fillAPIService, create: createAPIService,
			validate: validateAPIService, validateUpdate: validateAPIServiceUpdate, validateStatus: validateAPIServiceStatus,
		},
		column("Service", "The reference to the service that hosts this API endpoint.", func(s *apiService) any {
			if s.Spec.Service == nil {
				return "Local"
			}
			return s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
		}),
		column("Available", "Whether this service is available.", func(s *apiService) any { return availability(s) }),
		age(),
	)
	k.ClusterScoped, k.Status, k.WithoutGeneration, k.Categories = true, true, true, []string{apiExtensions}
	k.ValidateName = func(name string, _ bool) []string { return content.IsPathSegmentName(name) }
	return k
}

func availability(s *apiService) string {
	for _, c := range s.Status.Conditions {
		if c.Type != apiregistrationv1.Available {
			continue
		}
		if c.Status != apiregistrationv1.ConditionTrue && c.Reason != "" {
			return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
		return string(c.Status)
	}
	return string(apiregistrationv1.ConditionUnknown)
}

func fillAPIService(s *apiService) {
	if service := s.Spec.Service; service != nil && service.Port == nil {
		service.Port = new(int32(443))
	}
}

// createAPIService sets the status of a local APIService to available.
func createAPIService(s *apiService) {
	if s.Spec.Service == nil {
		s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: "Local", Message: "Local APIServices are always available",
		}}
	}
}

func validateAPIService(s *apiService) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if name := s.Spec.Version + "." + s.Spec.Group; s.Name != name && len(content.IsPathSegmentName(s.Name)) == 0 {
		errs = append(
			errs,
			field.Invalid(field.NewPath("metadata", "name"), s.Name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", name)),
		)
	}
	if s.Spec.Group == "" && s.Spec.Version != "v1" {
		errs = append(errs, field.Required(spec.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if s.Spec.Group != "" {
		for _, msg := range validation.IsDNS1123Subdomain(s.Spec.Group) {
			errs = append(errs, field.Invalid(spec.Child("group"), s.Spec.Group, msg))
		}
	}
	for _, msg := range validation.IsDNS1035Label(s.Spec.Version) {
		errs = append(errs, field.Invalid(spec.Child("version"), s.Spec.Version, msg))
	}
	if p := s.Spec.GroupPriorityMinimum; p <= 0 || p > 20000 {
		errs = append(errs, field.Invalid(spec.Child("groupPriorityMinimum"), p, "must be positive and less than 20000"))
	}
	if p := s.Spec.VersionPriority; p <= 0 || p > 1000 {
		errs = append(errs, field.Invalid(spec.Child("versionPriority"), p, "must be positive and less than 1000"))
	}
	if s.Spec.Service == nil {
		return append(errs, validateLocalAPIService(s, spec)...)
	}
	return append(errs, validateRemoteAPIService(s, spec)...)
}

func validateLocalAPIService(s *apiService, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := len(s.Spec.CABundle); n > 0 {
		errs = append(errs, field.Invalid(spec.Child("caBundle"), fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle"))
	}
	if s.Spec.InsecureSkipTLSVerify {
		errs = append(errs, field.Invalid(spec.Child("insecureSkipTLSVerify"), true, "local APIServices may not have insecureSkipTLSVerify"))
	}
	return errs
}

func validateRemoteAPIService(s *apiService, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	at, service := spec.Child("service"), s.Spec.Service
	if service.Namespace == "" {
		errs = append(errs, field.Required(at.Child("namespace"), ""))
	}
	if service.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	if msgs := validation.IsValidPortNum(int(*service.Port)); msgs != nil {
		errs = append(errs, field.Invalid(at.Child("port"), *service.Port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if s.Spec.InsecureSkipTLSVerify && len(s.Spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(spec.Child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present"))
	}
	return errs
}

// validateAPIServiceUpdate repeats the errors of the metadata as kube-apiserver does.
func validateAPIServiceUpdate(s, old *apiService) field.ErrorList {
	named := func(string, bool) []string { return nil } // validateAPIService has validated it
	at := field.NewPath("metadata")
	return append(
		apivalidation.ValidateObjectMetaUpdate(&s.ObjectMeta, &old.ObjectMeta, at),
		apivalidation.ValidateObjectMeta(&s.ObjectMeta, false, named, at)...)
}

func validateAPIServiceStatus(s, old *apiService) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&s.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	states := []apiregistrationv1.ConditionStatus{
		apiregistrationv1.ConditionTrue,
		apiregistrationv1.ConditionFalse,
		apiregistrationv1.ConditionUnknown,
	}
	for i, c := range s.Status.Conditions {
		errs = append(errs, oneOf(&c.Status, false, field.NewPath("status", "conditions").Index(i).Child("status"), states...)...)
	}
	return errs
}
