package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/annexapi/annex/config"
)

const (
	eventTTLFlag      = "event-ttl"
	runtimeConfigFlag = "runtime-config"
	crdsFlag          = "crds"
	workloadsFlag     = "workloads"
	proxyCertFlag     = "proxy-client-cert-file"
	proxyKeyFlag      = "proxy-client-key-file"
)

// planeFlags are the flags of a control plane. Flags that upstream also has keep upstream's names and meanings.
type planeFlags struct {
	eventTTL time.Duration
	runtime  cliflag.ConfigurationMap
	crds     []string
	// workloads is used only if the flag is given.
	workloads bool
	// The client certificate that the server presents to aggregated servers.
	proxyCert, proxyKey string
}

func (p *planeFlags) declare(flags *pflag.FlagSet) {
	p.runtime = cliflag.ConfigurationMap{}
	flags.DurationVar(&p.eventTTL, eventTTLFlag, time.Hour, "time that a control plane keeps events; 0 keeps them forever")
	flags.Var(&p.runtime, runtimeConfigFlag, "APIs of a control plane to enable or disable, as KEY=true or KEY=false; keys are api/all, "+
		"api/ga, api/beta, api/v1, GROUP/VERSION, or one of the last two with /RESOURCE; the longest key takes precedence")
	flags.BoolVar(&p.workloads, workloadsFlag, false, "serve pods, deployments and all other kinds of a kube-apiserver too; no pod runs "+
		"(default: the developer's choice)")
	flags.StringVar(&p.proxyCert, proxyCertFlag, "", "client certificate of a control plane for the aggregated servers behind it, issued by "+
		"--requestheader-client-ca-file (PEM; default: a certificate that the server creates)")
	flags.StringVar(&p.proxyKey, proxyKeyFlag, "", "key of --proxy-client-cert-file (PEM)")
	flags.StringArrayVar(&p.crds, crdsFlag, nil, "folder of CustomResourceDefinitions; the server applies them at start and when files "+
		"change; may be given several times")
}

func (p *planeFlags) complete(flags *pflag.FlagSet, o *config.ControlPlaneOptions) error {
	o.CRDs = p.crds
	if flags.Changed(workloadsFlag) {
		o.Workloads = &p.workloads
	}
	o.ProxyClientCertFile, o.ProxyClientKeyFile = p.proxyCert, p.proxyKey
	if flags.Changed(eventTTLFlag) {
		o.EventTTL = p.eventTTL
		if err := zeroIsNone(flags, eventTTLFlag, &o.EventTTL); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.runtime)) {
		on := true // a bare name enables, as in upstream's servers
		if text := p.runtime[name]; text != "" {
			var err error
			if on, err = strconv.ParseBool(text); err != nil {
				return usage(fmt.Errorf("--%s %s=%s: the value must be true or false", runtimeConfigFlag, name, text))
			}
		}
		if o.RuntimeConfig == nil {
			o.RuntimeConfig = map[string]bool{}
		}
		o.RuntimeConfig[name] = on
	}
	return nil
}
