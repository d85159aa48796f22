package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings returns warnings about the parts of a valid template that are accepted but probably unintended.
func Warnings(t *corev1.PodTemplateSpec, at *field.Path) []string {
	w := &warner{spec: &t.Spec, annotations: t.Annotations, metadata: at.Child("metadata", "annotations")}
	at = at.Child("spec")
	w.labels(at)
	for _, key := range []string{"scheduler.alpha.kubernetes.io/critical-pod", "security.alpha.kubernetes.io/sysctls",
		"security.alpha.kubernetes.io/unsafe-sysctls"} {
		w.annotation(key, uselessAnnotations[key])
	}
	w.volumes(at.Child("volumes"))
	w.duplicates(at)
	w.fractions(at.Child("overhead"), t.Spec.Overhead)
	if securityOf(w.spec).SeccompProfile == nil {
		w.annotation(corev1.SeccompPodAnnotationKey, useSeccomp)
	}
	for at, container := range containers(w.spec, at) {
		w.container(at, container)
	}
	w.ports(at)
	if grace := t.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		w.at(at.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.podAffinity(at.Child("affinity"))
	w.addresses(at)
	return w.warnings
}

type warner struct {
	spec        *corev1.PodSpec
	annotations map[string]string
	metadata    *field.Path
	warnings    []string
}

func (w *warner) at(at *field.Path, format string, args ...any) {
	w.warnings = append(w.warnings, at.String()+": "+fmt.Sprintf(format, args...))
}

// annotation adds a warning if the annotation exists.
func (w *warner) annotation(key, message string) {
	if _, ok := w.annotations[key]; ok {
		w.at(w.metadata.Key(key), "%s", message)
	}
}

var (
	uselessAnnotations = map[string]string{
		"scheduler.alpha.kubernetes.io/critical-pod":  `non-functional in v1.16+; use the "priorityClassName" field instead`,
		"security.alpha.kubernetes.io/sysctls":        `non-functional in v1.11+; use the "sysctls" field instead`,
		"security.alpha.kubernetes.io/unsafe-sysctls": `non-functional in v1.11+; use the "sysctls" field instead`,
	}
	oldLabels = map[string]string{
		"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
		"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
		"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
		"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
		"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
		"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
		"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
		"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
	}
)

const (
	useSeccomp   = `non-functional in v1.27+; use the "seccompProfile" field instead`
	matchesNone  = "a null labelSelector results in matching no pod"
	notWhole     = "fractional byte value %q is invalid, must be an integer"
	removedLater = "deprecated in v1.22, non-functional in v1.25+"
	removedLast  = "deprecated in v1.28, non-functional in v1.31+"
)

// labels warns of renamed node labels.
func (w *warner) labels(at *field.Path) {
	for _, key := range sorted(w.spec.NodeSelector) {
		if message, old := oldLabels[key]; old {
			w.at(at.Child("nodeSelector").Key(key), "%s", message)
		}
	}
	if a := w.spec.Affinity; a != nil && a.NodeAffinity != nil {
		at := at.Child("affinity", "nodeAffinity")
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				w.nodeTerm(
					at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms").Index(i),
					&required.NodeSelectorTerms[i],
					false,
				)
			}
		}
		for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w.nodeTerm(at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("preference"),
				&a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference, true)
		}
	}
	for i, s := range w.spec.TopologySpreadConstraints {
		at := at.Child("topologySpreadConstraints").Index(i)
		if message, old := oldLabels[s.TopologyKey]; old {
			w.at(at.Child("topologyKey"), "%s is %s", s.TopologyKey, message)
		}
		if s.LabelSelector == nil {
			w.at(at.Child("labelSelector"), matchesNone)
		}
	}
}

func (w *warner) nodeTerm(at *field.Path, term *corev1.NodeSelectorTerm, preferred bool) {
	for i, e := range term.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		if message, old := oldLabels[e.Key]; old {
			w.at(at.Child("key"), "%s is %s", e.Key, message)
		}
		for j, value := range e.Values {
			if preferred {
				for _, wrong := range validation.IsValidLabelValue(value) {
					w.at(at.Child("values").Index(j), "%s is invalid, %s", value, wrong)
				}
			}
		}
	}
}

// volumes warns of types that clusters no longer support, and of overlapping files.
func (w *warner) volumes(at *field.Path) {
	for i := range w.spec.Volumes {
		v, at := &w.spec.Volumes[i].VolumeSource, at.Index(i)
		for _, t := range []struct {
			name    string
			is      bool
			message string
		}{
			{"photonPersistentDisk", v.PhotonPersistentDisk != nil, "deprecated in v1.11, non-functional in v1.16+"},
			{"gitRepo", v.GitRepo != nil, "deprecated in v1.11, and disabled by default in v1.33+"},
			{"scaleIO", v.ScaleIO != nil, "deprecated in v1.16, non-functional in v1.22+"},
			{"flocker", v.Flocker != nil, removedLater},
			{"storageOS", v.StorageOS != nil, removedLater},
			{"quobyte", v.Quobyte != nil, removedLater},
			{"glusterfs", v.Glusterfs != nil, "deprecated in v1.25, non-functional in v1.26+"},
			{"cephfs", v.CephFS != nil, removedLast},
			{"rbd", v.RBD != nil, removedLast},
		} {
			if t.is {
				w.at(at.Child(t.name), "%s", t.message)
			}
		}
		if v.Ephemeral != nil {
			resources := v.Ephemeral.VolumeClaimTemplate.Spec.Resources
			at := at.Child("ephemeral", "volumeClaimTemplate", "spec", "resources")
			w.fraction(at.Child("requests"), resources.Requests, corev1.ResourceStorage)
			w.fraction(at.Child("limits"), resources.Limits, corev1.ResourceStorage)
		}
	}
	for i := range w.spec.Volumes {
		w.overlaps(&w.spec.Volumes[i])
	}
}

// placedFile is a file of a volume, with its source.
type placedFile struct{ path, source string }

func (p placedFile) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

func (w *warner) overlaps(v *corev1.Volume) {
	if v.ConfigMap != nil {
		w.overlap(v.Name, fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), pathsOf(v.ConfigMap.Items, ""))
	}
	if v.Secret != nil {
		w.overlap(v.Name, fmt.Sprintf("Secret %q", v.Secret.SecretName), pathsOf(v.Secret.Items, ""))
	}
	if v.DownwardAPI != nil {
		w.overlap(v.Name, "DownwardAPI", downwardPaths(v.DownwardAPI.Items, ""))
	}
	if v.Projected == nil {
		return
	}
	var files []placedFile
	for i := range v.Projected.Sources {
		if v.Projected.Sources[i] == (corev1.VolumeProjection{}) {
			w.warnings = append(w.warnings, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			continue
		}
		files = append(files, projectedPaths(&v.Projected.Sources[i])...)
	}
	w.overlap(v.Name, "Projected", files)
}

func pathsOf(items []corev1.KeyToPath, source string) []placedFile {
	var files []placedFile
	for _, item := range items {
		files = append(files, placedFile{item.Path, source})
	}
	return files
}

func downwardPaths(items []corev1.DownwardAPIVolumeFile, source string) []placedFile {
	var files []placedFile
	for _, item := range items {
		files = append(files, placedFile{item.Path, source})
	}
	return files
}

func projectedPaths(s *corev1.VolumeProjection) []placedFile {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return pathsOf(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return pathsOf(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return downwardPaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []placedFile{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		return []placedFile{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case s.PodCertificate != nil:
		var files []placedFile
		for _, file := range []placedFile{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		} {
			if file.path != "" {
				files = append(files, file)
			}
		}
		return files
	}
	return nil
}

// overlap warns of files that are the same, or below each other.
func (w *warner) overlap(volume, of string, files []placedFile) {
	for i := range files {
		file := &files[i]
		file.path = strings.TrimRight(file.path, "/")
		for _, other := range files[:i] {
			if file.path != "" && other.path != "" &&
				(strings.HasPrefix(other.path+"/", file.path+"/") || strings.HasPrefix(file.path+"/", other.path+"/")) {
				w.warnings = append(w.warnings, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", volume, of, file, other))
			}
		}
	}
}

// duplicates warns of repeated entries, of which one has no effect.
func (w *warner) duplicates(at *field.Path) {
	var seen []string
	for i, alias := range w.spec.HostAliases {
		if slices.Contains(seen, alias.IP) {
			w.at(at.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
		seen = append(seen, alias.IP)
	}
	seen = nil
	for i, secret := range w.spec.ImagePullSecrets {
		if slices.Contains(seen, secret.Name) {
			w.at(at.Child("imagePullSecrets").Index(i).Child("name"), "duplicate name %q", secret.Name)
		}
		seen = append(seen, secret.Name)
	}
	for i, secret := range w.spec.ImagePullSecrets {
		if secret.Name == "" {
			w.at(at.Child("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", secret.Name)
		}
	}
}

// fractions warns of fractions of bytes.
func (w *warner) fractions(at *field.Path, list corev1.ResourceList) {
	w.fraction(at, list, corev1.ResourceMemory)
	w.fraction(at, list, corev1.ResourceEphemeralStorage)
}

func (w *warner) fraction(at *field.Path, list corev1.ResourceList, name corev1.ResourceName) {
	if amount, ok := list[name]; ok && amount.MilliValue()%1000 != 0 {
		w.at(at.Key(string(name)), notWhole, amount.String())
	}
}

func (w *warner) container(at *field.Path, container *corev1.Container) {
	s := container.SecurityContext
	if s == nil || s.SeccompProfile == nil {
		w.annotation(ofContainerSeccomp+container.Name, useSeccomp)
	}
	if s == nil || s.AppArmorProfile == nil {
		key, profile := ofContainerAppArmor+container.Name, securityOf(w.spec).AppArmorProfile
		if profile == nil || !apiequality.Semantic.DeepEqual(profile, appArmorOf(w.annotations[key])) {
			w.annotation(key, `deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
	}
	w.fraction(at.Child("resources", "limits"), container.Resources.Limits, corev1.ResourceMemory)
	w.fraction(at.Child("resources", "requests"), container.Resources.Requests, corev1.ResourceMemory)
	w.fraction(at.Child("resources", "limits"), container.Resources.Limits, corev1.ResourceEphemeralStorage)
	w.fraction(at.Child("resources", "requests"), container.Resources.Requests, corev1.ResourceEphemeralStorage)
	var names []string
	for i, v := range container.Env {
		if !slices.Contains(names, v.Name) {
			names = append(names, v.Name)
			continue
		}
		// A variable that extends the previous one, such as X with the value "$(X)/more", does not hide it.
		if earlier := "$(" + v.Name + ")"; v.ValueFrom != nil || v.Value == earlier || !strings.Contains(v.Value, earlier) {
			w.at(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", v.Name)
		}
	}
}

// appArmorOf returns the profile in an annotation, or nil.
func appArmorOf(annotation string) *corev1.AppArmorProfile {
	switch name, local := strings.CutPrefix(annotation, localhost); {
	case annotation == unconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case annotation == runtimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case local && name != "":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}

func (w *warner) ports(at *field.Path) {
	type known struct {
		at   *field.Path
		port corev1.ContainerPort
	}
	var all []known
	for at, container := range containers(w.spec, at) {
		for i, port := range container.Ports {
			at := at.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.at(at, "hostIP set without hostPort: %+v", port)
			}
			for _, other := range all {
				o := other.port
				switch {
				case o.ContainerPort != port.ContainerPort || o.Protocol != port.Protocol:
				case o.HostIP == port.HostIP && o.HostPort == port.HostPort:
					w.at(at, "duplicate port definition with %s", other.at)
				case o.HostPort == 0 || port.HostPort == 0:
					w.at(at, "overlapping port definition with %s", other.at)
				case o.HostPort == port.HostPort && (o.HostIP == "") != (port.HostIP == ""):
					w.at(at, "dangerously ambiguous port definition with %s", other.at)
				}
			}
			all = append(all, known{at, port})
		}
	}
	first := map[string]*field.Path{}
	for _, p := range all {
		if p.port.Name == "" {
			continue
		}
		if other := first[p.port.Name]; other != nil {
			w.at(p.at, "duplicate port name %q with %s, services and probes that select ports by name will use %s", p.port.Name, other, other)
		} else {
			first[p.port.Name] = p.at
		}
	}
}

func (w *warner) podAffinity(at *field.Path) {
	if w.spec.Affinity == nil {
		return
	}
	terms := func(at *field.Path, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		none := func(at *field.Path, selector *metav1.LabelSelector) {
			if selector == nil {
				w.at(at.Child("labelSelector"), matchesNone)
			}
		}
		for i := range required {
			none(at.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i), required[i].LabelSelector)
		}
		for i := range preferred {
			none(
				at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm"),
				preferred[i].PodAffinityTerm.LabelSelector,
			)
		}
	}
	if a := w.spec.Affinity.PodAffinity; a != nil {
		terms(at.Child("podAffinity"), a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := w.spec.Affinity.PodAntiAffinity; a != nil {
		terms(at.Child("podAntiAffinity"), a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// addresses warns of IP addresses that programs interpret differently.
func (w *warner) addresses(at *field.Path) {
	if w.spec.DNSConfig != nil {
		for i, server := range w.spec.DNSConfig.Nameservers {
			w.warnings = append(w.warnings, validation.GetWarningsForIP(at.Child("dnsConfig", "nameservers").Index(i), server)...)
		}
	}
	for i, alias := range w.spec.HostAliases {
		w.warnings = append(w.warnings, validation.GetWarningsForIP(at.Child("hostAliases").Index(i).Child("ip"), alias.IP)...)
	}
}
