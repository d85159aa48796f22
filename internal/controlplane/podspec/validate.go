package podspec

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns the errors of the template at a path.
func Validate(t *corev1.PodTemplateSpec, at *field.Path) field.ErrorList {
	c := &check{spec: &t.Spec, podContext: securityOf(&t.Spec)}
	c.add(metav1validation.ValidateLabels(t.Labels, at.Child("labels"))...)
	c.add(apivalidation.ValidateAnnotations(t.Annotations, at.Child("annotations"))...)
	c.annotations(at.Child("annotations"), t.Annotations)
	c.podSpec(at.Child("spec"))
	c.seccompAnnotations(at.Child("spec"), t.Annotations)
	c.appArmorAnnotations(at.Child("spec"), t.Annotations)
	if len(t.Spec.EphemeralContainers) > 0 {
		c.forbidden(at.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
	return c.errs
}

func (c *check) podSpec(at *field.Path) {
	s := c.spec
	if s.TerminationGracePeriodSeconds == nil {
		c.required(at.Child("terminationGracePeriodSeconds"), "")
	}
	c.validateVolumes(at.Child("volumes"))
	c.resourceClaims(at.Child("resourceClaims"))
	c.regularContainers(at.Child("containers"))
	c.initContainers(at.Child("initContainers"))
	c.ephemeralContainers(at.Child("ephemeralContainers"))
	c.podResources(at.Child("resources"))
	c.hostNetworkPorts(at.Child("containers"))
	chosen(
		c,
		at.Child("restartPolicy"),
		s.RestartPolicy,
		corev1.RestartPolicyAlways,
		corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever,
	)
	chosen(
		c,
		at.Child("dnsPolicy"),
		s.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet,
		corev1.DNSClusterFirst,
		corev1.DNSDefault,
		corev1.DNSNone,
	)
	c.add(metav1validation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector"))...)
	c.podSecurity(at.Child("securityContext"))
	if is(s.ShareProcessNamespace, true) && s.HostPID {
		c.invalid(at.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	c.affinity(at.Child("affinity"), s.Affinity)
	c.dnsConfig(at.Child("dnsConfig"), s.DNSConfig)
	for i, gate := range s.ReadinessGates {
		c.qualified(at.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType))
	}
	c.schedulingGates(at.Child("schedulingGates"))
	c.topologySpread(at.Child("topologySpreadConstraints"))
	c.hostProcesses(at)
	c.hostUsers(at)
	c.hostnameOverride(at.Child("hostnameOverride"))
	c.names(at)
	if d := s.ActiveDeadlineSeconds; d != nil {
		between(c, at.Child("activeDeadlineSeconds"), *d, 1, math.MaxInt32)
	}
	c.tolerations(at.Child("tolerations"), s.Tolerations)
	c.hostAliases(at.Child("hostAliases"))
	if s.PreemptionPolicy != nil {
		chosen(c, at.Child("preemptionPolicy"), *s.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if s.Overhead != nil {
		c.resources(at.Child("overhead"), &corev1.ResourceRequirements{Limits: s.Overhead}, c.containerResource)
	}
	c.operatingSystem(at)
	c.fileKeys(at)
}

// names validates the fields with names of other objects, and with the network names of the pod.
func (c *check) names(at *field.Path) {
	s := c.spec
	for _, n := range []struct {
		field, name string
		wrong       func(string) []string
	}{
		{"serviceAccountName", s.ServiceAccountName, subdomain},
		{"nodeName", s.NodeName, subdomain},
		{"hostname", s.Hostname, validation.IsDNS1123Label},
		{"subdomain", s.Subdomain, validation.IsDNS1123Label},
		{"priorityClassName", s.PriorityClassName, subdomain},
	} {
		if n.name != "" {
			c.each(at.Child(n.field), n.name, n.wrong(n.name))
		}
	}
	if s.DeprecatedServiceAccount != s.ServiceAccountName {
		c.invalid(
			at.Child("deprecatedServiceAccount"),
			s.DeprecatedServiceAccount,
			fmt.Sprintf("must be the same as serviceAccountName: %q", s.ServiceAccountName),
		)
	}
	if s.RuntimeClassName != nil {
		c.each(at.Child("runtimeClassName"), *s.RuntimeClassName, subdomain(*s.RuntimeClassName))
	}
}

func subdomain(name string) []string { return apivalidation.NameIsDNSSubdomain(name, false) }

// prefixOfSubdomain also accepts a trailing dash.
func prefixOfSubdomain(name string) []string { return apivalidation.NameIsDNSSubdomain(name, true) }

func (c *check) qualified(at *field.Path, name string) {
	c.each(at, name, validation.IsQualifiedName(name))
}

// hostNetworkPorts requires that host ports, if set, equal the container ports.
func (c *check) hostNetworkPorts(at *field.Path) {
	if !c.spec.HostNetwork {
		return
	}
	for i := range c.spec.Containers {
		for j, port := range c.spec.Containers[i].Ports {
			if port.HostPort != 0 && port.HostPort != port.ContainerPort {
				c.invalid(
					at.Index(i).Child("ports").Index(j).Child("hostPort"),
					port.HostPort,
					"must match `containerPort` when `hostNetwork` is true",
				)
			}
		}
	}
}

const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func (c *check) dnsConfig(at *field.Path, config *corev1.PodDNSConfig) {
	if c.spec.DNSPolicy == corev1.DNSNone {
		switch {
		case config == nil:
			c.required(at, "must provide `dnsConfig` when `dnsPolicy` is None")
			return
		case len(config.Nameservers) == 0:
			c.required(at.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")
			return
		}
	}
	if config == nil {
		return
	}
	if len(config.Nameservers) > maxNameservers {
		c.invalid(at.Child("nameservers"), config.Nameservers, fmt.Sprintf("must not have more than %d nameservers", maxNameservers))
	}
	for i, server := range config.Nameservers {
		c.add(validation.IsValidIPForLegacyField(at.Child("nameservers").Index(i), server, true, nil)...)
	}
	searches := at.Child("searches")
	if len(config.Searches) > maxSearches {
		c.invalid(searches, config.Searches, fmt.Sprintf("must not have more than %d search paths", maxSearches))
	}
	if len(strings.Join(config.Searches, " ")) > maxSearchChars {
		c.invalid(
			searches,
			config.Searches,
			fmt.Sprintf("must not have more than %d characters (including spaces) in the search list", maxSearchChars),
		)
	}
	for i, search := range config.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			c.each(searches.Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(search))
		}
	}
	for i, option := range config.Options {
		if option.Name == "" {
			c.required(at.Child("options").Index(i), "must not be empty")
		}
	}
}

func (c *check) schedulingGates(at *field.Path) {
	var seen []string
	for i, gate := range c.spec.SchedulingGates {
		c.qualified(at.Index(i), gate.Name)
		if slices.Contains(seen, gate.Name) {
			c.add(field.Duplicate(at.Index(i), gate.Name))
		}
		seen = append(seen, gate.Name)
	}
}

func (c *check) hostAliases(at *field.Path) {
	for i, alias := range c.spec.HostAliases {
		c.add(validation.IsValidIPForLegacyField(at.Index(i).Child("ip"), alias.IP, true, nil)...)
		for j, name := range alias.Hostnames {
			c.each(at.Index(i).Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain(name))
		}
	}
}

func (c *check) hostnameOverride(at *field.Path) {
	name := c.spec.HostnameOverride
	if name == nil {
		return
	}
	if is(c.spec.SetHostnameAsFQDN, true) {
		c.forbidden(at, "may not be specified when setHostnameAsFQDN is true")
	}
	if c.spec.HostNetwork {
		c.forbidden(at, "may not be specified when hostNetwork is true")
	}
	if len(*name) > 64 {
		c.add(field.TooLong(at, "", 64))
	}
	c.each(at, *name, validation.IsDNS1123Subdomain(*name))
}

// hostUsers validates pods with a user namespace of their own.
func (c *check) hostUsers(at *field.Path) {
	if !is(c.spec.HostUsers, false) {
		return
	}
	const detail = "when `hostUsers` is false"
	if c.spec.HostNetwork {
		c.forbidden(at.Child("hostNetwork"), detail)
	}
	if c.spec.HostPID {
		c.forbidden(at.Child("HostPID"), detail)
	}
	if c.spec.HostIPC {
		c.forbidden(at.Child("HostIPC"), detail)
	}
	for at, container := range containers(c.spec, at) {
		if len(container.VolumeDevices) > 0 {
			c.forbidden(at.Child("volumeDevices"), detail)
		}
	}
}

// fileKeys validates variables that are read from files, which must be in emptyDir volumes of the pod.
func (c *check) fileKeys(at *field.Path) {
	for at, container := range containers(c.spec, at) {
		for i, env := range container.Env {
			if env.ValueFrom == nil || env.ValueFrom.FileKeyRef == nil {
				continue
			}
			at, name := at.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName"), env.ValueFrom.FileKeyRef.VolumeName
			var found *corev1.Volume
			for i := range c.spec.Volumes {
				if c.spec.Volumes[i].Name == name {
					found = &c.spec.Volumes[i]
				}
			}
			switch {
			case found == nil:
				c.add(field.NotFound(at, name))
			case found.EmptyDir == nil:
				c.invalid(at, name, "referenced volume must be of type emptyDir")
			}
		}
	}
}

// operatingSystem forbids the fields that the template's operating system does not support.
func (c *check) operatingSystem(at *field.Path) {
	if c.spec.OS == nil {
		return
	}
	switch name := c.spec.OS.Name; name {
	case "":
		c.required(at.Child("os", "name"), "")
	case corev1.Linux:
		c.forLinux(at)
	case corev1.Windows:
		c.forWindows(at)
	default:
		c.add(field.NotSupported(at.Child("os"), name, []corev1.OSName{corev1.Linux, corev1.Windows}))
	}
}
