// Package doctor finds the reason why an API server that a cluster aggregates is unavailable, or will be soon.
//
// A request to such a server passes a chain of links: the APIService refers to a Service, the Service to endpoints;
// the connection to them is trusted if the certificate is; the server trusts the front proxy and asks the cluster
// about users; and only then it answers. Each link has a check in [chain], which returns a finding with its evidence
// and a repair. The checks read everything through the cluster's API server, with the permissions of the kubeconfig's
// user. Only the server's certificate is read directly, if its address can be reached from here. A check that lacks
// access reports so.
package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime"
)

// Options configure an examination.
type Options struct {
	// Kubeconfig is a file; empty means kubectl's default: KUBECONFIG, or ~/.kube/config, or the service account of
	// the pod.
	Kubeconfig string
	// Context is a context of the kubeconfig; empty means its current context.
	Context string
	// Names are names of APIServices (VERSION.GROUP), GROUP/VERSION, or groups. None means all APIServices that refer
	// to a Service.
	Names []string
	// All continues after the first broken link.
	All bool
	// Slow is the accepted duration of a discovery request, without the round trip to the cluster. Zero means 100 ms.
	Slow time.Duration
	// ServiceAccount is the account, as NAMESPACE/NAME, with which the server calls the cluster. Empty means the
	// account of the pods behind the Service.
	ServiceAccount string
	// Patience bounds each request and the wait for the end of a list. Zero means 10 s.
	Patience time.Duration
}

// State is the state of a link.
type State string

const (
	OK     State = "ok"
	Broken State = "broken"
	// Doubtful links work, but not as they should, or not for long.
	Doubtful State = "warning"
	// Unseen links were not checked; the finding has the reason.
	Unseen State = "not looked at"
)

// Reasons identify the fault of a link. They are stable.
const (
	ReasonNotRegistered        = "NotRegistered"
	ReasonGroupClaimedTwice    = "GroupClaimedTwice"
	ReasonPriorityClash        = "PriorityClash"
	ReasonCustomResourceClash  = "CustomResourceClash"
	ReasonServiceNotFound      = "ServiceNotFound"
	ReasonServicePortMissing   = "ServicePortMissing"
	ReasonServiceUnroutable    = "ServiceUnroutable"
	ReasonNoEndpoints          = "NoEndpoints"
	ReasonEndpointsNotReady    = "EndpointsNotReady"
	ReasonEndpointPortMissing  = "EndpointPortMissing"
	ReasonPortClosed           = "PortClosed"
	ReasonUnreachable          = "Unreachable"
	ReasonNoAnswer             = "NoAnswer"
	ReasonNotTLS               = "NotTLS"
	ReasonNotVerified          = "NotVerified"
	ReasonNameNotInCertificate = "NameNotInCertificate"
	ReasonUnknownAuthority     = "UnknownAuthority"
	ReasonCABundleUnreadable   = "CABundleUnreadable"
	ReasonAuthorityExpired     = "AuthorityExpired"
	ReasonCertificateExpired   = "CertificateExpired"
	ReasonCertificateNotYet    = "CertificateNotYetValid"
	ReasonExpiresSoon          = "ExpiresSoon"
	ReasonFrontProxyUnset      = "FrontProxyUnset"
	ReasonFrontProxyExpired    = "FrontProxyAuthorityExpired"
	ReasonNoServiceAccount     = "ServiceAccountNotFound"
	ReasonDefaultAccount       = "DefaultServiceAccount"
	ReasonAuthReaderMissing    = "AuthReaderMissing"
	ReasonDelegatorMissing     = "AuthDelegatorMissing"
	ReasonAdmissionMissing     = "AdmissionPermissionsMissing"
	ReasonFlowControlMissing   = "FlowControlPermissionsMissing"
	ReasonFrontProxyRefused    = "FrontProxyRefused"
	ReasonVersionNotServed     = "VersionNotServed"
	ReasonNotAvailable         = "NotAvailable"
	ReasonSlowDiscovery        = "SlowDiscovery"
	ReasonStaleDiscovery       = "StaleDiscovery"
	ReasonNothingServed        = "NothingServed"
	ReasonNoWatchList          = "NoWatchList"
	ReasonNoEndOfList          = "NoInitialEventsEnd"
	ReasonOpenAPIMissing       = "OpenAPIMissing"
)

// Finding is the result of the check of one link.
type Finding struct {
	Link  string `json:"link"`
	State State  `json:"state"`
	// Reason is one of the constants. It is empty if the link is ok or was not checked.
	Reason string `json:"reason,omitempty"`
	// Message is one line.
	Message string `json:"message"`
	// Evidence lists the facts that support the message.
	Evidence []string `json:"evidence,omitempty"`
	// Repair is a list of commands and YAML, at most one screen long.
	Repair string `json:"repair,omitempty"`
	// Cause is a later link that is broken and breaks this one.
	Cause string `json:"cause,omitempty"`

	fix runtime.Object // the object that Fix creates
}

// Diagnosis is the result for one APIService, with a finding for each link in the order of the chain.
type Diagnosis struct {
	APIService string    `json:"apiService"`
	Findings   []Finding `json:"findings"`
}

// First returns the finding to repair first: the first broken link, or its cause. It is nil if no link is broken.
func (d *Diagnosis) First() *Finding {
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.State == Broken })
	if i < 0 {
		return nil
	}
	if cause := d.Findings[i].Cause; cause != "" {
		i = slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Link == cause })
	}
	return &d.Findings[i]
}

// link is a link of the chain.
type link struct {
	name  string
	check func(context.Context, *examination) Finding
	// needs are links without which this one cannot be checked.
	needs []string
	// causes maps reasons to later links that may break this one: a server that may not read the front proxy's
	// configuration exits, or is not ready. The causes are checked before the walk stops here.
	causes map[string][]string
}

const (
	linkAPIService  = "APIService"
	linkPriorities  = "priorities"
	linkService     = "Service"
	linkEndpoints   = "endpoints"
	linkConnection  = "connection"
	linkName        = "certificate name"
	linkAuthority   = "certificate authority"
	linkExpiry      = "certificate expiry"
	linkFrontProxy  = "front proxy"
	linkAccount     = "service account"
	linkAuthReader  = "auth-reader"
	linkDelegator   = "auth-delegator"
	linkAdmission   = "admission"
	linkFlowControl = "flow control"
	linkAvailable   = "availability"
	linkDiscovery   = "discovery"
	linkWatchList   = "watch list"
	linkOpenAPI     = "OpenAPI"
)

// chain returns the links on which a request to an aggregated API server depends, in their order.
func chain() []link {
	registered, routed := []string{linkAPIService}, []string{linkAPIService, linkService}
	toStart := []string{linkFrontProxy, linkAuthReader, linkDelegator}
	answers := []string{linkAPIService, linkService, linkEndpoints, linkConnection, linkName, linkAuthority, linkExpiry, linkAvailable}
	return []link{
		{name: linkAPIService, check: checkRegistration},
		{name: linkPriorities, check: checkPriorities, needs: registered},
		{name: linkService, check: checkService, needs: registered},
		{
			name:   linkEndpoints,
			check:  checkEndpoints,
			needs:  routed,
			causes: map[string][]string{ReasonEndpointsNotReady: append(toStart, linkAdmission)},
		},
		{
			name:   linkConnection,
			check:  checkConnection,
			needs:  append(routed, linkEndpoints),
			causes: map[string][]string{ReasonPortClosed: toStart},
		},
		{name: linkName, check: checkName, needs: append(routed, linkConnection)},
		{name: linkAuthority, check: checkAuthority, needs: registered},
		{name: linkExpiry, check: checkExpiry, needs: registered},
		{name: linkFrontProxy, check: checkFrontProxy},
		{name: linkAccount, check: checkAccount, needs: registered},
		{name: linkAuthReader, check: checkAuthReader, needs: registered},
		{name: linkDelegator, check: checkDelegator, needs: registered},
		{name: linkAdmission, check: checkAdmission, needs: registered},
		{name: linkFlowControl, check: checkFlowControl, needs: registered},
		{name: linkAvailable, check: checkAvailable, needs: answers[:len(answers)-1]},
		{name: linkDiscovery, check: checkDiscovery, needs: answers},
		{name: linkWatchList, check: checkWatchList, needs: answers},
		{name: linkOpenAPI, check: checkOpenAPI, needs: answers},
	}
}

// Examine walks the chain of each selected APIService. It returns an error only if it could examine none; findings
// are not errors.
func Examine(ctx context.Context, options Options) ([]Diagnosis, error) {
	options.setDefaults()
	h, err := connect(ctx, options)
	if err != nil {
		return nil, err
	}
	return h.examine(ctx, options)
}

func (o *Options) setDefaults() {
	if o.Slow == 0 {
		o.Slow = 100 * time.Millisecond
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
}

func (h *host) examine(ctx context.Context, options Options) ([]Diagnosis, error) {
	all, err := h.apiServices(ctx)
	if err != nil {
		return nil, err
	}
	var diagnoses []Diagnosis
	for _, name := range chosen(all, options.Names) {
		p := &examination{host: h, options: options, name: name, all: all}
		diagnoses = append(diagnoses, Diagnosis{APIService: name, Findings: p.walk(ctx)})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return diagnoses, nil
}

// walk checks the links until one is broken.
func (p *examination) walk(ctx context.Context) []Finding {
	links := chain()
	findings := make([]Finding, len(links))
	broken, why := map[string]bool{}, "" // the reason why the walk stopped
	look := func(i int) *Finding {
		f := &findings[i]
		for _, need := range links[i].needs {
			if broken[need] {
				*f = unseen("not checked, because it depends on a broken link: " + need)
			}
		}
		if f.State == "" {
			*f = links[i].check(ctx, p)
		}
		f.Link, broken[links[i].name] = links[i].name, f.State == Broken
		return f
	}
	for i := range links {
		switch {
		case findings[i].State != "": // already checked as a cause of an earlier link
		case why != "":
			findings[i] = unseen(why)
			findings[i].Link = links[i].name
		default:
			f := look(i)
			if f.State != Broken {
				continue
			}
			for j := i + 1; j < len(links) && f.Cause == ""; j++ {
				if slices.Contains(links[i].causes[f.Reason], links[j].name) && look(j).State == Broken {
					f.Cause = links[j].name
				}
			}
			if !p.options.All {
				why = "not checked, because an earlier link is broken: use --all to check it"
			}
		}
	}
	return findings
}

func ok(format string, args ...any) Finding {
	return Finding{State: OK, Message: fmt.Sprintf(format, args...)}
}

func unseen(why string) Finding { return Finding{State: Unseen, Message: why} }

func wrong(state State, reason, format string, args ...any) Finding {
	return Finding{State: state, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (f Finding) seenIn(evidence ...string) Finding {
	for _, e := range evidence {
		if e != "" {
			f.Evidence = append(f.Evidence, e)
		}
	}
	return f
}

func (f Finding) repairedBy(lines ...string) Finding {
	f.Repair = strings.Join(lines, "\n")
	return f
}

// Print writes a diagnosis for people: a line for each link, then the first repair. With all, or if nothing is
// broken, it writes all repairs.
func (d *Diagnosis) Print(w io.Writer, all bool) {
	fmt.Fprintln(w, d.APIService)
	for _, f := range d.Findings {
		fmt.Fprintf(w, "  %-13s  %-21s  %s\n", f.State, f.Link, oneLine(f.Message))
		if f.State != Broken && f.State != Doubtful {
			continue
		}
		for _, e := range f.Evidence {
			fmt.Fprintf(w, "  %-13s  %-21s  - %s\n", "", "", oneLine(e))
		}
		if f.Cause != "" {
			fmt.Fprintf(w, "  %-13s  %-21s  - cause: %s\n", "", "", f.Cause)
		}
	}
	first := d.First()
	for i := range d.Findings {
		f := &d.Findings[i]
		if f.Repair == "" || first != nil && f != first && !all {
			continue
		}
		fmt.Fprintf(w, "\n  To repair: %s (%s)\n\n", f.Link, f.Reason)
		for line := range strings.Lines(f.Repair) {
			fmt.Fprint(w, "    ", line)
		}
		fmt.Fprintln(w)
	}
}

// oneLine truncates a server's text, and replaces its control characters, which a terminal would interpret.
func oneLine(said string) string {
	said = strings.Join(strings.FieldsFunc(said, func(r rune) bool { return unicode.IsControl(r) }), " ")
	const most = 1000
	if len(said) > most {
		return said[:most] + "..."
	}
	return said
}
