package manifests

import (
	"fmt"
	"slices"
	"strings"
)

// This file has the arguments of the programs in the pods.

// args returns the arguments of the server.
func (c *Config) args() []string {
	o := &c.plan.Options
	args := []string{
		"serve",
		"--aggregated",
		"--bind-address=0.0.0.0",
		fmt.Sprintf("--secure-port=%d", securePort),
		"--data-dir=" + dataDir,
		"--storage=" + o.Storage.Name(),
		// The cluster needs this time to notice that the pod is terminating.
		"--shutdown-delay-duration=5s",
	}
	if len(c.EtcdServers) > 0 {
		args = append(args, "--etcd-servers="+strings.Join(c.EtcdServers, ","))
		if c.EtcdSecret != "" {
			args = append(args, "--etcd-cafile="+etcdDir+"/ca.crt", "--etcd-certfile="+etcdDir+"/tls.crt", "--etcd-keyfile="+etcdDir+"/tls.key")
		}
	}
	if !c.shared() {
		// Bound the caches so that they fit into the memory limit.
		args = append(args, "--object-cache-size=256Mi", "--value-cache-size=256Mi")
	}
	if c.Certificates == SelfCertified {
		args = append(
			args,
			"--self-certify",
			"--service-name="+c.Name,
			"--service-namespace=$(POD_NAMESPACE)",
			"--workload="+c.workloadResource()+"/"+c.Name,
		)
	} else {
		args = append(args, "--tls-cert-file="+servingDir+"/tls.crt", "--tls-private-key-file="+servingDir+"/tls.key")
	}
	if len(c.DisablePlugins) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(c.DisablePlugins, ","))
	}
	if c.WithoutFlowControl {
		args = append(args, "--enable-priority-and-fairness=false")
	}
	if c.SeparateControllers {
		args = append(args, "--controllers=")
	}
	return append(args, c.Args...)
}

// controllerArgs returns the arguments of the verb that runs the server's controllers.
func controllerArgs() []string {
	return []string{"controllers", "--leader-elect-resource-namespace=$(POD_NAMESPACE)"}
}

// etcdArgs returns the arguments of etcd.
func (c *Config) etcdArgs() []string {
	own := "https://" + c.etcdName() + "." + c.Namespace + ".svc"
	tls := func(kind string) []string {
		return []string{
			"--" + kind + "trusted-ca-file=" + etcdDir + "/ca.crt", "--" + kind + "cert-file=" + etcdDir + "/tls.crt",
			"--" + kind + "key-file=" + etcdDir + "/tls.key", "--" + kind + "client-cert-auth",
		}
	}
	return slices.Concat([]string{
		"--name=" + c.etcdName(),
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=https://0.0.0.0:2379",
		"--advertise-client-urls=" + own + ":2379",
		"--listen-peer-urls=https://127.0.0.1:2380",
		"--initial-advertise-peer-urls=https://127.0.0.1:2380",
		"--initial-cluster=" + c.etcdName() + "=https://127.0.0.1:2380",
		"--listen-metrics-urls=http://0.0.0.0:2381",
	}, tls(""), tls("peer-"))
}
