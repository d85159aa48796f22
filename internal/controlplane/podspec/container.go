package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *check) regularContainers(at *field.Path) {
	if len(c.spec.Containers) == 0 {
		c.required(at, "")
		return
	}
	var names []string
	for i := range c.spec.Containers {
		container, at := &c.spec.Containers[i], at.Index(i)
		c.container(at, container)
		if slices.Contains(names, container.Name) {
			c.add(field.Duplicate(at.Child("name"), container.Name))
		}
		names = append(names, container.Name)
		c.running(at, container)
		c.restarts(at, container)
	}
	c.hostPorts(at, c.spec.Containers)
}

func (c *check) initContainers(at *field.Path) {
	var names []string
	for i := range c.spec.Containers {
		names = append(names, c.spec.Containers[i].Name)
	}
	for i := range c.spec.InitContainers {
		container, path := &c.spec.InitContainers[i], at.Index(i)
		c.container(path, container)
		if container.RestartPolicy != nil {
			c.restarts(path, container)
		} else if len(container.RestartPolicyRules) > 0 {
			c.required(path.Child("restartPolicy"), ruleNeedsPolicy)
		}
		if slices.Contains(names, container.Name) {
			c.add(field.Duplicate(path.Child("name"), container.Name))
		} else if container.Name != "" {
			names = append(names, container.Name)
		}
		c.hostPorts(at, c.spec.InitContainers[i:i+1]) // init containers run one by one
		if sidecar(container) {
			c.running(path, container)
		} else {
			c.notRunning(path, container)
		}
	}
}

// running validates the fields that only long-running containers have.
func (c *check) running(at *field.Path, container *corev1.Container) {
	if l := container.Lifecycle; l != nil {
		at := at.Child("lifecycle")
		c.lifecycleHandler(at.Child("postStart"), l.PostStart)
		c.lifecycleHandler(at.Child("preStop"), l.PreStop)
	}
	const once = "must be 1"
	if p := container.LivenessProbe; p != nil {
		c.probe(at.Child("livenessProbe"), p)
		if p.SuccessThreshold != 1 {
			c.invalid(at.Child("livenessProbe", "successThreshold"), p.SuccessThreshold, once)
		}
	}
	if p := container.ReadinessProbe; p != nil {
		c.probe(at.Child("readinessProbe"), p)
		if p.TerminationGracePeriodSeconds != nil {
			c.invalid(
				at.Child("readinessProbe", "terminationGracePeriodSeconds"),
				*p.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes",
			)
		}
	}
	if p := container.StartupProbe; p != nil {
		c.probe(at.Child("startupProbe"), p)
		if p.SuccessThreshold != 1 {
			c.invalid(at.Child("startupProbe", "successThreshold"), p.SuccessThreshold, once)
		}
	}
}

func (c *check) notRunning(at *field.Path, container *corev1.Container) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"lifecycle", container.Lifecycle != nil},
		{"livenessProbe", container.LivenessProbe != nil},
		{"readinessProbe", container.ReadinessProbe != nil},
		{"startupProbe", container.StartupProbe != nil},
	} {
		if f.set {
			c.forbidden(at.Child(f.name), "may not be set for init containers without restartPolicy=Always")
		}
	}
	for i, resize := range container.ResizePolicy {
		if resize.RestartPolicy == corev1.RestartContainer {
			c.invalid(
				at.Child("resizePolicy").Index(i).Child("restartPolicy"),
				resize.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers",
			)
		}
	}
}

const ruleNeedsPolicy = "must specify restartPolicy when restart rules are used"

// restarts validates the restart policy of a container, which is independent of its pod's.
func (c *check) restarts(at *field.Path, container *corev1.Container) {
	policy, rules := container.RestartPolicy, container.RestartPolicyRules
	switch {
	case policy != nil:
		oneOf(
			c,
			at.Child("restartPolicy"),
			*policy,
			corev1.ContainerRestartPolicyAlways,
			corev1.ContainerRestartPolicyNever,
			corev1.ContainerRestartPolicyOnFailure,
		)
	case len(rules) > 0:
		c.required(at.Child("restartPolicy"), ruleNeedsPolicy)
	}
	c.atMost(at.Child("restartPolicyRules"), len(rules), 20)
	for i, rule := range rules {
		at := at.Child("restartPolicyRules").Index(i)
		oneOf(
			c,
			at.Child("action"),
			rule.Action,
			corev1.ContainerRestartRuleActionRestart,
			corev1.ContainerRestartRuleActionRestartAllContainers,
		)
		if rule.ExitCodes == nil {
			c.required(at.Child("exitCodes"), "must be specified")
			continue
		}
		oneOf(
			c,
			at.Child("exitCodes", "operator"),
			rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn,
			corev1.ContainerRestartRuleOnExitCodesOpNotIn,
		)
		c.atMost(at.Child("exitCodes", "values"), len(rule.ExitCodes.Values), 255)
	}
}

func (c *check) atMost(at *field.Path, n, most int) {
	if n > most {
		c.add(field.TooMany(at, n, most))
	}
}

// ephemeralContainers validates ephemeral containers. They are not allowed in templates, which is reported
// separately.
func (c *check) ephemeralContainers(at *field.Path) {
	var others []string
	for _, list := range [][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for i := range list {
			others = append(others, list[i].Name)
		}
	}
	names := slices.Clone(others)
	for i := range c.spec.EphemeralContainers {
		container, at := &c.spec.EphemeralContainers[i], at.Index(i)
		c.container(at, common(container))
		if container.Image != strings.TrimSpace(container.Image) {
			c.invalid(at.Child("image"), container.Image, "must not have leading or trailing whitespace")
		}
		if slices.Contains(names, container.Name) {
			c.add(field.Duplicate(at.Child("name"), container.Name))
		}
		names = append(names, container.Name)
		if target := container.TargetContainerName; target != "" && !slices.Contains(others, target) {
			c.add(field.NotFound(at.Child("targetContainerName"), target))
		}
		const detail = "cannot be set for an Ephemeral Container"
		c.only(at, container.EphemeralContainerCommon, detail,
			"Name", "Image", "Command", "Args", "WorkingDir", "EnvFrom", "Env", "VolumeMounts", "VolumeDevices", "TerminationMessagePath",
			"TerminationMessagePolicy", "ImagePullPolicy", "SecurityContext", "Stdin", "StdinOnce", "TTY")
		for j, mount := range container.VolumeMounts {
			at := at.Child("volumeMounts").Index(j)
			if mount.SubPath != "" {
				c.forbidden(at.Child("subPath"), detail)
			}
			if mount.SubPathExpr != "" {
				c.forbidden(at.Child("subPathExpr"), detail)
			}
		}
	}
}

// container validates the fields that containers of all kinds have.
func (c *check) container(at *field.Path, container *corev1.Container) {
	c.label(at.Child("name"), container.Name)
	c.filled(at.Child("image"), container.Image)
	chosen(c, at.Child("terminationMessagePolicy"), container.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	c.ports(at.Child("ports"), container.Ports)
	c.env(at.Child("env"), container.Env)
	c.envFrom(at.Child("envFrom"), container.EnvFrom)
	c.mounts(at.Child("volumeMounts"), container)
	c.devices(at.Child("volumeDevices"), container)
	c.pullPolicy(at.Child("imagePullPolicy"), container.ImagePullPolicy)
	c.resources(at.Child("resources"), &container.Resources, c.containerResource)
	c.resizePolicy(at.Child("resizePolicy"), container.ResizePolicy)
	c.security(at.Child("securityContext"), container.SecurityContext)
}

func (c *check) pullPolicy(at *field.Path, policy corev1.PullPolicy) {
	chosen(c, at, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func (c *check) ports(at *field.Path, ports []corev1.ContainerPort) {
	var names []string
	for i, port := range ports {
		at := at.Index(i)
		if port.Name != "" {
			wrong := validation.IsValidPortName(port.Name)
			c.each(at.Child("name"), port.Name, wrong)
			if len(wrong) == 0 {
				if slices.Contains(names, port.Name) {
					c.add(field.Duplicate(at.Child("name"), port.Name))
				}
				names = append(names, port.Name)
			}
		}
		if port.ContainerPort == 0 {
			c.required(at.Child("containerPort"), "")
		} else {
			c.each(at.Child("containerPort"), port.ContainerPort, validation.IsValidPortNum(int(port.ContainerPort)))
		}
		if port.HostPort != 0 {
			c.each(at.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))
		}
		chosen(c, at.Child("protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

// hostPorts requires distinct host ports.
func (c *check) hostPorts(at *field.Path, containers []corev1.Container) {
	var taken []string
	for i := range containers {
		for j, port := range containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			name := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if slices.Contains(taken, name) {
				c.add(field.Duplicate(at.Index(i).Child("ports").Index(j).Child("hostPort"), name))
			}
			taken = append(taken, name)
		}
	}
}

func (c *check) probe(at *field.Path, p *corev1.Probe) {
	c.handler(at, handler{exec: p.Exec, get: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC})
	for _, n := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		c.add(apivalidation.ValidateNonnegativeField(int64(n.value), at.Child(n.field))...)
	}
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace <= 0 {
		c.invalid(at.Child("terminationGracePeriodSeconds"), *grace, "must be greater than 0")
	}
}

func (c *check) lifecycleHandler(at *field.Path, h *corev1.LifecycleHandler) {
	if h != nil {
		c.handler(at, handler{exec: h.Exec, get: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep})
	}
}

// handler is the action of a probe or a hook: exactly one of these.
type handler struct {
	exec  *corev1.ExecAction
	get   *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func (c *check) handler(at *field.Path, h handler) {
	n := 0
	for _, action := range []struct {
		name     string
		set      bool
		validate func(*field.Path)
	}{
		{"exec", h.exec != nil, func(at *field.Path) {
			if len(h.exec.Command) == 0 {
				c.required(at.Child("command"), "")
			}
		}},
		{"httpGet", h.get != nil, func(at *field.Path) { c.httpGet(at, h.get) }},
		{"tcpSocket", h.tcp != nil, func(at *field.Path) { c.port(at.Child("port"), h.tcp.Port) }},
		{"grpc", h.grpc != nil, func(at *field.Path) { c.port(at.Child("port"), intstr.FromInt32(h.grpc.Port)) }},
		{"sleep", h.sleep != nil, func(at *field.Path) { c.sleep(at, h.sleep.Seconds) }},
	} {
		switch {
		case !action.set:
			continue
		case n > 0:
			c.forbidden(at.Child(action.name), "may not specify more than 1 handler type")
		default:
			action.validate(at.Child(action.name))
		}
		n++
	}
	if n == 0 {
		c.required(at, "must specify a handler type")
	}
}

func (c *check) httpGet(at *field.Path, get *corev1.HTTPGetAction) {
	c.filled(at.Child("path"), get.Path)
	c.port(at.Child("port"), get.Port)
	oneOf(c, at.Child("scheme"), get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, header := range get.HTTPHeaders {
		c.each(at.Child("httpHeaders"), header.Name, validation.IsHTTPHeaderName(header.Name))
	}
}

func (c *check) port(at *field.Path, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		c.each(at, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
	} else {
		c.each(at, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
}

func (c *check) sleep(at *field.Path, seconds int64) {
	if grace := c.spec.TerminationGracePeriodSeconds; grace != nil && (seconds < 0 || seconds > *grace) {
		c.invalid(at, seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
	}
}

func (c *check) resizePolicy(at *field.Path, policies []corev1.ContainerResizePolicy) {
	var seen []corev1.ResourceName
	for i, p := range policies {
		if slices.Contains(seen, p.ResourceName) {
			c.add(field.Duplicate(at.Index(i), p.ResourceName))
		}
		seen = append(seen, p.ResourceName)
		chosen(c, at, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		chosen(c, at, p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if c.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			c.invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}
