package builtin

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
)

const (
	none = "<none>"
	// maxAffinity is a day, in seconds.
	maxAffinity = 86400
)

// services are names of external servers, for API services and webhooks. Other types of services need a cluster
// network, which does not exist.
func services() *define.Kind {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	k := kind[corev1.Service, corev1.ServiceList]("services", core.API,
		rules[corev1.Service]{
			fill: fillService, create: prepareService, update: func(s, _ *corev1.Service) { prepareService(s) },
			validate: validateService, validateStatus: validateServiceStatus, warn: warnOfService,
		},
		column("Type", doc["type"], func(s *corev1.Service) any { return string(s.Spec.Type) }),
		column("Cluster-IP", doc["clusterIP"], func(*corev1.Service) any { return none }),
		column("External-IP", doc["externalIPs"], func(s *corev1.Service) any { return s.Spec.ExternalName }),
		column("Port(s)", doc["ports"], func(s *corev1.Service) any { return portsOf(s) }),
		age(),
		wide(column("Selector", doc["selector"], func(s *corev1.Service) any { return labels.FormatLabels(s.Spec.Selector) })),
	)
	k.ShortNames, k.Categories, k.Status = []string{"svc"}, []string{"all"}, true
	k.WithoutGeneration, k.Unconditional, k.CreateOnUpdate, k.Replaceable, k.ReturnsDeleted = true, true, true, true, true
	k.ValidateName = func(name string, prefix bool) []string { return apivalidation.NameIsDNSLabel(name, prefix) }
	k.Selectable = []define.SelectableField{
		selectable("spec.clusterIP", func(s *corev1.Service) string { return s.Spec.ClusterIP }),
		selectable("spec.type", func(s *corev1.Service) string { return string(s.Spec.Type) }),
	}
	return k
}

func portsOf(s *corev1.Service) string {
	var all []string
	for _, p := range s.Spec.Ports {
		if p.NodePort > 0 {
			all = append(all, fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol))
		} else {
			all = append(all, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	if len(all) == 0 {
		return none
	}
	return strings.Join(all, ",")
}

func fillService(s *corev1.Service) {
	spec := &s.Spec
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)},
			}
		}
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
}

// prepareService drops the fields that kube-apiserver drops from services of type ExternalName. Invalid values stay,
// so that validation rejects them.
func prepareService(s *corev1.Service) {
	if p := s.Spec.InternalTrafficPolicy; s.Spec.Type == corev1.ServiceTypeExternalName && p != nil && slices.Contains(internalPolicies, *p) {
		s.Spec.InternalTrafficPolicy = nil
	}
}

var internalPolicies = []corev1.ServiceInternalTrafficPolicy{
	corev1.ServiceInternalTrafficPolicyCluster,
	corev1.ServiceInternalTrafficPolicyLocal,
}

func validateService(s *corev1.Service) field.ErrorList {
	errs := objects.ValidateFinalizers(s.Finalizers)
	at, spec := field.NewPath("spec"), &s.Spec
	switch spec.Type {
	case corev1.ServiceTypeExternalName:
		errs = append(errs, validateServiceAnnotations(s)...)
		errs = append(errs, validateExternalName(spec, at)...)
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return append(errs, field.Invalid(at.Child("type"), spec.Type, "this server has no cluster network: must be ExternalName, with "+
			"the host of the server in spec.externalName"))
	default:
		return append(errs, field.NotSupported(
			at.Child("type"),
			spec.Type,
			[]corev1.ServiceType{
				corev1.ServiceTypeClusterIP,
				corev1.ServiceTypeExternalName,
				corev1.ServiceTypeLoadBalancer,
				corev1.ServiceTypeNodePort,
			},
		))
	}
	errs = append(errs, validatePorts(spec.Ports, at.Child("ports"))...)
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, at.Child("selector"))...)
	errs = append(errs, validateTraffic(spec, at)...)
	affinities := []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}
	if !slices.Contains(affinities, spec.SessionAffinity) {
		errs = append(errs, field.NotSupported(at.Child("sessionAffinity"), spec.SessionAffinity, affinities))
	}
	if c := spec.SessionAffinityConfig; spec.SessionAffinity == corev1.ServiceAffinityClientIP && c != nil && c.ClientIP != nil &&
		c.ClientIP.TimeoutSeconds != nil {
		if seconds := *c.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > maxAffinity {
			errs = append(
				errs,
				field.Invalid(
					at.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"),
					seconds,
					fmt.Sprintf("must be greater than 0 and less than %d", maxAffinity),
				),
			)
		}
	}
	return errs
}

const balanced = "may only be used when `type` is 'LoadBalancer'"

func validateServiceAnnotations(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	annotations := s.Annotations
	at := field.NewPath("metadata", "annotations")
	hints, hinted := annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if mode, given := annotations[corev1.AnnotationTopologyMode]; given && hinted && mode != hints {
		errs = append(errs, field.Invalid(at.Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints)))
	}
	if ranges, given := annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; given && len(s.Spec.LoadBalancerSourceRanges) == 0 {
		at := at.Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		errs = append(errs, field.Forbidden(at, balanced))
		if ranges = strings.TrimSpace(ranges); ranges != "" {
			for cidr := range strings.SplitSeq(ranges, ",") {
				errs = append(errs, validation.IsValidCIDRForLegacyField(at, strings.TrimSpace(cidr), true, nil)...)
			}
		}
	}
	return errs
}

// validateTraffic validates the fields that determine how requests reach the servers of a service.
func validateTraffic(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range spec.ExternalIPs {
		errs = append(errs, validateExternalIP(ip, at.Child("externalIPs").Index(i))...)
	}
	if p := spec.InternalTrafficPolicy; p != nil && !slices.Contains(internalPolicies, *p) {
		errs = append(errs, field.NotSupported(at.Child("internalTrafficPolicy"), *p, internalPolicies))
	}
	distributions := []string{
		corev1.ServiceTrafficDistributionPreferClose,
		corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode,
	}
	if d := spec.TrafficDistribution; d != nil && !slices.Contains(distributions, *d) {
		errs = append(errs, field.NotSupported(at.Child("trafficDistribution"), *d, distributions))
	}
	if spec.HealthCheckNodePort != 0 {
		errs = append(errs, field.Invalid(at.Child("healthCheckNodePort"), spec.HealthCheckNodePort,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	return errs
}

func validateExternalIP(text string, at *field.Path) field.ErrorList {
	if errs := validation.IsValidIPForLegacyField(at, text, true, nil); len(errs) > 0 {
		return errs
	}
	var errs field.ErrorList
	ip := netutils.ParseIPSloppy(text)
	for _, c := range []struct {
		is  bool
		why string
	}{
		{ip.IsUnspecified(), fmt.Sprintf("may not be unspecified (%s)", text)},
		{ip.IsLoopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"},
		{ip.IsLinkLocalUnicast(), "may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{ip.IsLinkLocalMulticast(), "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"},
	} {
		if c.is {
			errs = append(errs, field.Invalid(at, text, c.why))
		}
	}
	return errs
}

func validateServiceStatus(s, _ *corev1.Service) field.ErrorList {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	return field.ErrorList{
		field.Forbidden(field.NewPath("status", "loadBalancer", "ingress"), "may only be used when `spec.type` is 'LoadBalancer'"),
	}
}

// warnOfService warns of fields without effect in a service of type ExternalName.
func warnOfService(s *corev1.Service) []string {
	var warnings []string
	at, spec := field.NewPath("spec"), &s.Spec
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		warnings = append(
			warnings,
			fmt.Sprintf(
				"annotation %s is deprecated, please use %s instead",
				corev1.DeprecatedAnnotationTopologyAwareHints,
				corev1.AnnotationTopologyMode,
			),
		)
	}
	for i, ip := range spec.ExternalIPs {
		warnings = append(warnings, validation.GetWarningsForIP(at.Child("externalIPs").Index(i), ip)...)
	}
	if ip := spec.LoadBalancerIP; netutils.ParseIPSloppy(ip) != nil { // it is not validated
		warnings = append(warnings, validation.GetWarningsForIP(at.Child("loadBalancerIP"), ip)...)
	}
	if len(spec.ExternalIPs) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName))
	}
	if d := spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		warnings = append(
			warnings,
			fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q", *d, corev1.ServiceTrafficDistributionPreferSameZone),
		)
	}
	return warnings
}

func validateExternalName(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(name string, given bool, why string) {
		if given {
			errs = append(errs, field.Forbidden(at.Child(name), why))
		}
	}
	const external, accessible = "may not be set for ExternalName services", "may only be set for externally-accessible services"
	forbid("clusterIPs", len(spec.ClusterIPs) > 0 || spec.ClusterIP != "", external)
	forbid("ipFamilies", len(spec.IPFamilies) > 0, external)
	forbid("ipFamilyPolicy", spec.IPFamilyPolicy != nil, external)
	ranges := at.Child("LoadBalancerSourceRanges") // the name that kube-apiserver uses
	forbid("LoadBalancerSourceRanges", len(spec.LoadBalancerSourceRanges) > 0, balanced)
	for i, cidr := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validation.IsValidCIDRForLegacyField(ranges.Index(i), strings.TrimSpace(cidr), true, nil)...)
	}
	forbid("allocateLoadBalancerNodePorts", spec.AllocateLoadBalancerNodePorts != nil, balanced)
	forbid("loadBalancerClass", spec.LoadBalancerClass != nil, balanced)
	if spec.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(at.Child("externalTrafficPolicy"), spec.ExternalTrafficPolicy, accessible))
	}
	// A trailing dot is allowed, as in a fully qualified name.
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(at.Child("externalName"), ""))
	}
	for _, msg := range content.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(at.Child("externalName"), name, msg))
	}
	return errs
}

func validatePorts(ports []corev1.ServicePort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(at *field.Path, value any, msgs []string) {
		for _, msg := range msgs {
			errs = append(errs, field.Invalid(at, value, msg))
		}
	}
	// numbered contains the fields that kube-apiserver prints for duplicate ports.
	type numbered struct {
		Name        string
		Protocol    corev1.Protocol
		AppProtocol *string
		Port        int32
		TargetPort  intstr.IntOrString
		NodePort    int32
	}
	names, numbers, nodePorts := map[string]bool{}, map[numbered]bool{}, map[numbered]bool{}
	for i, p := range ports {
		at := at.Index(i)
		switch {
		case p.Name == "" && len(ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "":
			invalid(at.Child("name"), p.Name, content.IsDNS1123Label(p.Name))
			if names[p.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
		protocols := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
		if !slices.Contains(protocols, p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), p.Protocol, protocols))
		}
		if p.TargetPort.Type == intstr.Int {
			invalid(at.Child("targetPort"), p.TargetPort.IntVal, validation.IsValidPortNum(int(p.TargetPort.IntVal)))
		} else {
			invalid(at.Child("targetPort"), p.TargetPort.StrVal, validation.IsValidPortName(p.TargetPort.StrVal))
		}
		if p.AppProtocol != nil {
			invalid(at.Child("appProtocol"), *p.AppProtocol, content.IsLabelKey(*p.AppProtocol))
		}
		number, node := numbered{Protocol: p.Protocol, Port: p.Port}, numbered{Protocol: p.Protocol, NodePort: p.NodePort}
		if numbers[number] {
			errs = append(errs, field.Duplicate(at, number))
		}
		if p.NodePort != 0 && nodePorts[node] {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
		numbers[number], nodePorts[node] = true, true
	}
	return errs
}
