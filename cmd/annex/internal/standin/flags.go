package standin

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// meaning is the effect of a flag of a kube-apiserver here.
type meaning int

const (
	// same flags have the same name and meaning in a server of Annex.
	same meaning = iota
	// ignored flags cannot change an answer.
	ignored
	// special flags are translated one by one.
	special
)

// known are the flags of kube-apiserver 1.37 that do not stop the start. Any other flag would change the outcome of a
// test, or no kube-apiserver has it.
var known = map[string]meaning{
	"admission-control-config-file": same, "api-audiences": same, "audit-log-format": same, "audit-log-maxage": same,
	"audit-log-maxbackup": same, "audit-log-maxsize": same, "audit-log-mode": same, "audit-log-path": same,
	"audit-policy-file": same, "audit-webhook-config-file": same, "audit-webhook-mode": same,
	"audit-webhook-batch-max-wait": same, "audit-webhook-batch-max-size": same, "audit-webhook-batch-buffer-size": same,
	"authentication-token-webhook-config-file": same, "authentication-token-webhook-cache-ttl": same,
	"authentication-token-webhook-version": same, "authorization-config": same,
	"authorization-webhook-config-file": same, "authorization-webhook-version": same,
	"authorization-webhook-cache-authorized-ttl": same, "authorization-webhook-cache-unauthorized-ttl": same,
	"bind-address": same, "cert-dir": same, "client-ca-file": same, "cors-allowed-origins": same, "contention-profiling": same,
	"enable-priority-and-fairness": same, "encryption-provider-config": same,
	"encryption-provider-config-automatic-reload": same, "event-ttl": same, "external-hostname": same, "goaway-chance": same,
	"http2-max-streams-per-connection": same, "max-mutating-requests-inflight": same, "max-requests-inflight": same,
	"profiling": same, "proxy-client-cert-file": same, "proxy-client-key-file": same, "request-timeout": same,
	"requestheader-allowed-names": same, "requestheader-client-ca-file": same, "requestheader-extra-headers-prefix": same,
	"requestheader-group-headers": same, "requestheader-uid-headers": same, "requestheader-username-headers": same,
	"runtime-config": same, "secure-port": same, "service-account-issuer": same, "service-account-jwks-uri": same,
	"service-account-key-file": same, "service-account-max-token-expiration": same, "service-account-signing-key-file": same,
	"shutdown-delay-duration": same, "strict-transport-security-directives": same, "tls-cert-file": same,
	"tls-cipher-suites": same, "tls-curve-preferences": same, "tls-min-version": same, "tls-private-key-file": same,
	"tls-sni-cert-key": same, "token-auth-file": same, "tracing-config-file": same, "disable-http2-serving": same,

	"authorization-mode": special, "disable-admission-plugins": special, "enable-admission-plugins": special,
	"feature-gates": special, "service-cluster-ip-range": special, "service-node-port-range": special, "v": special,
	"version": special, "allow-privileged": special, "anonymous-auth": special, "authentication-config": special,

	// The store is this process, and reads are consistent.
	"etcd-cafile": ignored, "etcd-certfile": ignored, "etcd-keyfile": ignored, "etcd-compaction-interval": ignored,
	"etcd-prefix": ignored, "etcd-servers": ignored, "etcd-servers-overrides": ignored, "etcd-healthcheck-timeout": ignored,
	"etcd-readycheck-timeout": ignored, "etcd-count-metric-poll-period": ignored, "etcd-db-metric-poll-interval": ignored,
	"storage-backend": ignored, "storage-media-type": ignored, "storage-initialization-timeout": ignored,
	"lease-reuse-duration-seconds": ignored, "watch-cache": ignored, "watch-cache-sizes": ignored,
	"default-watch-cache-size": ignored, "delete-collection-workers": ignored,
	// No node, no peer and no proxy is connected.
	"advertise-address": ignored, "apiserver-count": ignored, "endpoint-reconciler-type": ignored,
	"egress-selector-config-file": ignored, "enable-aggregator-routing": ignored, "identity-lease-duration-seconds": ignored,
	"identity-lease-renew-interval-seconds": ignored, "kubelet-certificate-authority": ignored,
	"kubelet-client-certificate": ignored, "kubelet-client-key": ignored, "kubelet-port": ignored,
	"kubelet-preferred-address-types": ignored, "kubelet-read-only-port": ignored, "kubelet-timeout": ignored,
	"kubernetes-service-node-port": ignored, "max-connection-bytes-per-sec": ignored, "peer-advertise-ip": ignored,
	"peer-advertise-port": ignored, "peer-ca-file": ignored, "aggregator-reject-forwarding-redirect": ignored,
	// Logs, metrics and the end of the process.
	"allow-metric-labels": ignored, "allow-metric-labels-manifest": ignored, "disabled-metrics": ignored,
	"show-hidden-metrics-for-version": ignored, "enable-logs-handler": ignored, "logging-format": ignored,
	"log-flush-frequency": ignored, "log-json-info-buffer-size": ignored, "log-json-split-stream": ignored,
	"log-text-info-buffer-size": ignored, "log-text-split-stream": ignored, "vmodule": ignored, "livez-grace-period": ignored,
	"min-request-timeout": ignored, "permit-address-sharing": ignored, "permit-port-sharing": ignored,
	"shutdown-send-retry-after": ignored, "shutdown-watch-termination-grace-period": ignored, "debug-socket-path": ignored,
	// These have the only value that the server has, or a default that no client sees.
	"enable-garbage-collector": ignored, "service-account-lookup": ignored,
	"service-account-extend-token-expiration": ignored, "enable-bootstrap-token-auth": ignored,
	"default-not-ready-toleration-seconds": ignored, "default-unreachable-toleration-seconds": ignored,
	"coordinated-leadership-lease-duration": ignored, "coordinated-leadership-renew-deadline": ignored,
	"coordinated-leadership-retry-period": ignored,
}

// bools are the flags that need no value.
var bools = []string{
	"allow-privileged", "anonymous-auth", "contention-profiling", "disable-http2-serving", "enable-aggregator-routing",
	"enable-bootstrap-token-auth", "enable-garbage-collector", "enable-logs-handler", "enable-priority-and-fairness",
	"encryption-provider-config-automatic-reload", "log-json-split-stream", "log-text-split-stream", "permit-address-sharing",
	"permit-port-sharing", "profiling", "service-account-extend-token-expiration", "service-account-lookup", "shutdown-send-retry-after",
	"version", "watch-cache", "aggregator-reject-forwarding-redirect",
}

// setting is one flag of a command line.
type setting struct{ name, value string }

// parse returns the flags of a kube-apiserver's command line in order.
func parse(args []string, usage io.Writer) ([]setting, error) {
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	flags.SetOutput(usage)
	var all []setting
	for name := range known {
		short := ""
		if name == "v" {
			short = name
		}
		f := flags.VarPF(&recorded{name: name, to: &all}, name, short, help(name))
		if slices.Contains(bools, name) {
			f.NoOptDefVal = "true"
		}
	}
	if err := flags.Parse(args); err != nil {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return nil, fmt.Errorf("%w: it would change the outcome of a test, or no kube-apiserver has it", err)
		}
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return all, nil
}

func help(name string) string {
	if known[name] == ignored {
		return "accepted and ignored"
	}
	return "as in a kube-apiserver"
}

// recorded is the value of a flag that records each use.
type recorded struct {
	name string
	to   *[]setting
}

// Set implements pflag.Value.
func (r *recorded) Set(value string) error {
	*r.to = append(*r.to, setting{r.name, value})
	return nil
}

// String implements pflag.Value.
func (r *recorded) String() string { return "" }

// Type implements pflag.Value.
func (r *recorded) Type() string {
	if slices.Contains(bools, r.name) {
		return "bool"
	}
	return "string"
}

// list splits a value with commas.
func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}
