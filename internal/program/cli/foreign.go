package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// foreignFlag returns the reason why serve lacks a flag of upstream's servers, or of servers that older libraries made,
// and what to do; empty for other flags, and if the flag's counterpart is of another verb.
func foreignFlag(cmd *cobra.Command, name string) string {
	if cmd.Name() != serveVerb {
		return ""
	}
	if hint := formerFlags[name]; hint != "" {
		return hint
	}
	if here := renamedFlags[name]; here != "" {
		return fmt.Sprintf("upstream's flag is --%s here", here)
	}
	if slices.Contains(withoutCounterpart, name) {
		return "upstream's flag has no counterpart here: leave it out; docs/reference/upstream-flags.md has the reason"
	}
	return ""
}

// formerFlags are flags of servers by apiserver-builder, apiserver-runtime and klog.
var formerFlags = map[string]string{
	"standalone-debug-mode": "a server without --aggregated stands alone: leave it out",
	"delegated-auth": "a server without --aggregated authenticates callers by itself, with --aggregated by its cluster: leave " +
		"it out",
	"print-bearer-token":     "the kubeconfig in the data directory has the administrator's credentials: leave it out",
	"run-controller-manager": "controllers run in the server unless --controllers= leaves them out: leave it out",
	"bind-port":              "the flag is --secure-port here",
	"insecure-addr":          "the address of --insecure-port is that of --bind-address: leave it out",
	"logtostderr":            "logs go to standard error: leave it out",
	"alsologtostderr":        "logs go to standard error: leave it out",
	"stderrthreshold":        "logs go to standard error: leave it out, and choose the level by -v",
	"log_dir":                "logs go to standard error: leave it out, and redirect them",
	"log-dir":                "logs go to standard error: leave it out, and redirect them",
	"vmodule":                "choose the level of all files by -v",
	"logging-format":         "the flag is --log-format here",
}

// renamedFlags are upstream's flags that have another name here.
var renamedFlags = map[string]string{
	"audit-webhook-batch-initial-backoff":     "audit-webhook-initial-backoff",
	"debug-socket-path":                       "unix-socket",
	"etcd-readycheck-timeout":                 "etcd-healthcheck-timeout",
	"etcd-servers-overrides":                  "storage-of",
	"shutdown-watch-termination-grace-period": "shutdown-timeout",
	"storage-backend":                         "storage",
	"storage-initialization-timeout":          "etcd-start-timeout",
	"storage-media-type":                      "storage-media-type-of",
}

// withoutCounterpart are upstream's other flags.
var withoutCounterpart = []string{
	"advertise-address",
	"default-watch-cache-size",
	"delete-collection-workers",
	"egress-selector-config-file",
	"emulated-version",
	"emulation-forward-compatible",
	"enable-garbage-collector",
	"etcd-count-metric-poll-period",
	"etcd-db-metric-poll-interval",
	"lease-reuse-duration-seconds",
	"livez-grace-period",
	"min-compatibility-version",
	"min-request-timeout",
	"permit-address-sharing",
	"permit-port-sharing",
	"runtime-config-emulation-forward-compatible",
	"shutdown-send-retry-after",
	"watch-cache",
	"watch-cache-sizes",
}
