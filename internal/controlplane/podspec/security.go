package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// securityOf returns the pod's security context; empty if there is none.
func securityOf(spec *corev1.PodSpec) *corev1.PodSecurityContext {
	if spec.SecurityContext == nil {
		return &corev1.PodSecurityContext{}
	}
	return spec.SecurityContext
}

func (c *check) podSecurity(at *field.Path) {
	s := c.podContext
	c.group(at.Child("fsGroup"), s.FSGroup)
	c.user(at.Child("runAsUser"), s.RunAsUser)
	c.group(at.Child("runAsGroup"), s.RunAsGroup)
	for i := range s.SupplementalGroups {
		c.group(at.Child("supplementalGroups").Index(i), &s.SupplementalGroups[i])
	}
	c.sysctls(at.Child("sysctls"), s.Sysctls)
	if s.FSGroupChangePolicy != nil {
		oneOf(c, at.Child("fsGroupChangePolicy"), *s.FSGroupChangePolicy, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	}
	c.seccomp(at.Child("seccompProfile"), s.SeccompProfile)
	c.windows(at.Child("windowsOptions"), s.WindowsOptions)
	c.appArmor(at.Child("appArmorProfile"), s.AppArmorProfile)
	if s.SupplementalGroupsPolicy != nil {
		oneOf(
			c,
			at.Child("supplementalGroupsPolicy"),
			*s.SupplementalGroupsPolicy,
			corev1.SupplementalGroupsPolicyMerge,
			corev1.SupplementalGroupsPolicyStrict,
		)
	}
	if s.SELinuxChangePolicy != nil {
		oneOf(
			c,
			at.Child("seLinuxChangePolicy"),
			*s.SELinuxChangePolicy,
			corev1.SELinuxChangePolicyMountOption,
			corev1.SELinuxChangePolicyRecursive,
		)
	}
}

const (
	sysctlPart = `[a-z0-9]([-_a-z0-9]*[a-z0-9])?`
	maxSysctl  = 253
)

var sysctl = regexp.MustCompile(`^(` + sysctlPart + `[\./])*` + sysctlPart + `$`)

func (c *check) sysctls(at *field.Path, all []corev1.Sysctl) {
	var names []string
	for i, s := range all {
		at := at.Index(i).Child("name")
		switch {
		case s.Name == "":
			c.required(at, "")
		case len(s.Name) > maxSysctl || !sysctl.MatchString(s.Name):
			c.invalid(at, s.Name, fmt.Sprintf("must have at most %d characters and match regex %s", maxSysctl, sysctl))
		case slices.Contains(names, s.Name):
			c.add(field.Duplicate(at, s.Name))
		}
		names = append(names, s.Name)
		network, processes := namespace(s.Name)
		switch {
		case network && c.spec.HostNetwork:
			c.invalid(at, s.Name, "may not be specified when 'hostNetwork' is true")
		case processes && c.spec.HostIPC:
			c.invalid(at, s.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

// interprocess are the kernel parameters of interprocess communication.
var interprocess = []string{"kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced", "kernel.shm",
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg"}

// namespace reports whether a kernel parameter belongs to the network, or to interprocess communication. Other
// parameters are irrelevant here.
func namespace(name string) (network, processes bool) {
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		name = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	name, _, _ = strings.Cut(name, "*")
	return strings.HasPrefix(name, "net."), slices.Contains(interprocess, name) || strings.HasPrefix(name, "fs.mqueue.")
}

func (c *check) security(at *field.Path, s *corev1.SecurityContext) {
	if s == nil {
		return
	}
	c.user(at.Child("runAsUser"), s.RunAsUser)
	c.group(at.Child("runAsGroup"), s.RunAsGroup)
	if s.ProcMount != nil {
		oneOf(c, at.Child("procMount"), *s.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *s.ProcMount == corev1.UnmaskedProcMount && !is(c.spec.HostUsers, false) {
			c.invalid(at.Child("procMount"), *s.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	c.seccomp(at.Child("seccompProfile"), s.SeccompProfile)
	if is(s.AllowPrivilegeEscalation, false) {
		if is(s.Privileged, true) {
			c.invalid(at, internal{s}, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if s.Capabilities != nil {
			for _, capability := range s.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					c.invalid(at, internal{s}, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
				}
			}
		}
	}
	c.windows(at.Child("windowsOptions"), s.WindowsOptions)
	c.appArmor(at.Child("appArmorProfile"), s.AppArmorProfile)
}

func (c *check) seccomp(at *field.Path, p *corev1.SeccompProfile) {
	if p == nil {
		return
	}
	if p.Type == "" {
		c.required(at.Child("type"), "type is required when seccompProfile is set")
	} else {
		oneOf(
			c,
			at.Child("type"),
			p.Type,
			corev1.SeccompProfileTypeLocalhost,
			corev1.SeccompProfileTypeRuntimeDefault,
			corev1.SeccompProfileTypeUnconfined,
		)
	}
	local := at.Child("localhostProfile")
	switch {
	case p.Type != corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		c.invalid(local, internal{p}, "can only be set when seccomp type is Localhost")
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile == nil:
		c.required(local, "must be set when seccomp type is Localhost")
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		c.descending(local, *p.LocalhostProfile)
	}
}

// maxAppArmor is the maximum length of a profile name, which is that of a path without the terminating byte.
const maxAppArmor = 4095

func (c *check) appArmor(at *field.Path, p *corev1.AppArmorProfile) {
	if p == nil {
		return
	}
	const needed = "must be set when AppArmor type is Localhost"
	local := at.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			c.required(local, needed)
			return
		}
		switch name := *p.LocalhostProfile; {
		case name != strings.TrimSpace(name):
			c.invalid(local, name, "must not be padded with whitespace")
		case name == "":
			c.required(local, needed)
		}
		if len(*p.LocalhostProfile) > maxAppArmor {
			c.add(field.TooLong(local, "", maxAppArmor))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			c.invalid(local, p.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		c.required(at.Child("type"), "type is required when appArmorProfile is set")
	default:
		oneOf(
			c,
			at.Child("type"),
			p.Type,
			corev1.AppArmorProfileTypeLocalhost,
			corev1.AppArmorProfileTypeRuntimeDefault,
			corev1.AppArmorProfileTypeUnconfined,
		)
	}
}

// The syntax of Windows user names and of the domains before them.
var (
	control     = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOS     = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsHost = regexp.MustCompile(`^` + windowsPart + `(?:\.` + windowsPart + `)*$`)
	notInUser   = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
	dotsOnly    = regexp.MustCompile(`^[\. ]+$`)
)

const (
	windowsPart      = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
	maxCredential    = 64 << 10
	maxWindowsDomain = 256
	maxWindowsUser   = 104
)

func (c *check) windows(at *field.Path, o *corev1.WindowsSecurityContextOptions) {
	if o == nil {
		return
	}
	if name := o.GMSACredentialSpecName; name != nil {
		c.each(at.Child("gmsaCredentialSpecName"), name, validation.IsDNS1123Subdomain(*name))
	}
	if spec := o.GMSACredentialSpec; spec != nil {
		switch n := len(*spec); {
		case n == 0:
			c.invalid(at.Child("gmsaCredentialSpec"), spec, "gmsaCredentialSpec cannot be an empty string")
		case n > maxCredential:
			c.invalid(at.Child("gmsaCredentialSpec"), spec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", maxCredential>>10))
		}
	}
	if o.RunAsUserName != nil {
		c.windowsUser(at.Child("runAsUserName"), o.RunAsUserName)
	}
}

// windowsUser requires a user name, with an optional domain.
func (c *check) windowsUser(at *field.Path, name *string) {
	wrong := func(format string, args ...any) { c.invalid(at, name, "runAsUserName"+fmt.Sprintf(format, args...)) }
	switch {
	case *name == "":
		wrong(" cannot be an empty string")
		return
	case control.MatchString(*name):
		wrong(" cannot contain control characters")
		return
	case strings.Count(*name, `\`) > 1:
		wrong(" cannot contain more than one backslash")
		return
	}
	domain, user, both := strings.Cut(*name, `\`)
	if !both {
		domain, user = "", *name
	}
	if len(domain) >= maxWindowsDomain {
		wrong("'s Domain length must be under %d characters", maxWindowsDomain)
	}
	if both && !netBIOS.MatchString(domain) && !windowsHost.MatchString(domain) {
		wrong("'s Domain doesn't match the NetBios nor the DNS format")
	}
	switch {
	case user == "":
		wrong("'s User cannot be empty")
	case len(user) > maxWindowsUser:
		wrong("'s User length must not be longer than %d characters", maxWindowsUser)
	}
	if dotsOnly.MatchString(user) {
		wrong("'s User cannot contain only periods or spaces")
	}
	if notInUser.MatchString(user) {
		wrong("'s User cannot contain the following characters: " + `"/\:;|=,+*?<>@[]`)
	}
}

// hostProcesses validates Windows containers that run as host processes: either all containers of a pod do, or none.
func (c *check) hostProcesses(at *field.Path) {
	var ofPod *bool
	if o := c.podContext.WindowsOptions; o != nil {
		ofPod = o.HostProcess
	}
	all, n := 0, 0
	for at, container := range containers(c.spec, at) {
		all++
		own := ofPod
		if s := container.SecurityContext; s != nil && s.WindowsOptions != nil && s.WindowsOptions.HostProcess != nil {
			own = s.WindowsOptions.HostProcess
			if ofPod != nil && *ofPod != *own {
				c.invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *own,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %t", *ofPod))
			}
		}
		if is(own, true) {
			n++
		}
	}
	if n == 0 {
		return
	}
	if n != all {
		c.invalid(at, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if !c.spec.HostNetwork {
		c.invalid(at.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

// forLinux forbids the fields that only Windows supports.
func (c *check) forLinux(at *field.Path) {
	const detail = "windows options cannot be set for a linux pod"
	if c.podContext.WindowsOptions != nil {
		c.forbidden(at.Child("securityContext", "windowsOptions"), detail)
	}
	for at, container := range containers(c.spec, at) {
		if container.SecurityContext != nil && container.SecurityContext.WindowsOptions != nil {
			c.forbidden(at.Child("securityContext", "windowsOptions"), detail)
		}
	}
}

// forWindows forbids the fields that only Linux supports.
func (c *check) forWindows(at *field.Path) {
	type use struct {
		field string
		set   bool
	}
	forbid := func(at *field.Path, uses ...use) {
		for _, u := range uses {
			if u.set {
				c.forbidden(at.Child(u.field), "cannot be set for a windows pod")
			}
		}
	}
	s, pod := c.podContext, c.spec
	forbid(
		at.Child("securityContext"),
		use{
			"appArmorProfile",
			s.AppArmorProfile != nil,
		},
		use{"seLinuxOptions", s.SELinuxOptions != nil},
		use{"seccompProfile", s.SeccompProfile != nil},
		use{"fsGroup", s.FSGroup != nil},
		use{"fsGroupChangePolicy", s.FSGroupChangePolicy != nil},
		use{"sysctls", len(s.Sysctls) > 0},
		use{"runAsUser", s.RunAsUser != nil},
		use{"runAsGroup", s.RunAsGroup != nil},
		use{"supplementalGroups", s.SupplementalGroups != nil},
		use{"supplementalGroupsPolicy", s.SupplementalGroupsPolicy != nil},
		use{"seLinuxChangePolicy", s.SELinuxChangePolicy != nil},
	)
	forbid(at, use{"hostUsers", pod.HostUsers != nil}, use{"hostPID", pod.HostPID}, use{"hostIPC", pod.HostIPC},
		use{"shareProcessNamespace", pod.ShareProcessNamespace != nil})
	for at, container := range containers(pod, at) {
		if s := container.SecurityContext; s != nil {
			forbid(
				at.Child("securityContext"),
				use{
					"appArmorProfile",
					s.AppArmorProfile != nil,
				},
				use{"seLinuxOptions", s.SELinuxOptions != nil},
				use{"seccompProfile", s.SeccompProfile != nil},
				use{
					"capabilities",
					s.Capabilities != nil,
				},
				use{"readOnlyRootFilesystem", s.ReadOnlyRootFilesystem != nil},
				use{"privileged", s.Privileged != nil},
				use{"allowPrivilegeEscalation", s.AllowPrivilegeEscalation != nil},
				use{"procMount", s.ProcMount != nil},
				use{"runAsUser", s.RunAsUser != nil},
				use{"runAsGroup", s.RunAsGroup != nil},
			)
		}
	}
}
