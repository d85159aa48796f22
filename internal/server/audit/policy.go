package audit

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/base/filewatch"
)

// Policy selects the events and their content.
type Policy struct {
	file    string // empty for the default
	current atomic.Pointer[audit.PolicyRuleEvaluator]
	// read is the content of the file in force. refused is the error of the last rejected content.
	read              string
	refused           string
	reloads, refusals atomic.Int64
}

var _ audit.PolicyRuleEvaluator = (*Policy)(nil)

// openPolicy reads a file; an empty path selects the default. strict is for servers that reject requests if the event
// of their receipt cannot be recorded.
func openPolicy(file string, strict bool) (*Policy, error) {
	p := &Policy{file: file}
	if file == "" {
		p.use(defaultPolicy(strict))
		return p, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("Options.Audit.PolicyFile: %w", err)
	}
	parsed, err := parsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("Options.Audit.PolicyFile %s: %w", file, err)
	}
	p.read = string(data)
	p.use(parsed)
	return p, nil
}

func (p *Policy) use(parsed *auditinternal.Policy) {
	evaluator := policy.NewPolicyRuleEvaluator(parsed)
	p.current.Store(&evaluator)
}

// EvaluatePolicyRule implements audit.PolicyRuleEvaluator. It excludes the bodies of requests with bearer tokens,
// regardless of the policy: a recorded token could be used.
func (p *Policy) EvaluatePolicyRule(a authorizer.Attributes) audit.RequestAuditConfig {
	config := (*p.current.Load()).EvaluatePolicyRule(a)
	if auditinternal.LevelMetadata.Less(config.Level) && hasToken(a) {
		config.Level = auditinternal.LevelMetadata
	}
	return config
}

// hasToken reports whether the body of a request or its response contains a bearer token.
func hasToken(a authorizer.Attributes) bool {
	switch a.GetAPIGroup() {
	case corev1.GroupName:
		return a.GetResource() == "serviceaccounts" && a.GetSubresource() == "token"
	case authnv1.GroupName:
		return a.GetResource() == "tokenreviews"
	}
	return false
}

// run reloads the file when it changes, until ctx is done.
func (p *Policy) run(ctx context.Context) {
	if p.file == "" {
		return
	}
	filewatch.Run(ctx, "Audit policy", p.file, func(context.Context) error { return p.reload() })
}

// reload is called by one goroutine. It counts each content of the file once.
func (p *Policy) reload() error {
	data, err := os.ReadFile(p.file)
	if err == nil && string(data) == p.read {
		p.refused = ""
		return nil
	}
	var parsed *auditinternal.Policy
	if err == nil {
		parsed, err = parsePolicy(data)
	}
	if err != nil {
		if reason := err.Error(); reason != p.refused {
			p.refused = reason
			p.refusals.Add(1)
		}
		return err
	}
	p.use(parsed)
	p.read, p.refused = string(data), ""
	p.reloads.Add(1)
	return nil
}

// parsePolicy rejects unknown fields, which upstream only logs: a rule without an intended field is a different rule.
func parsePolicy(data []byte) (*auditinternal.Policy, error) {
	strict := serializer.NewCodecFactory(audit.Scheme, serializer.EnableStrict).UniversalDecoder()
	if _, _, err := strict.Decode(data, nil, nil); err != nil {
		return nil, oneLine(err)
	}
	parsed, err := policy.LoadPolicyFromBytes(data)
	if err != nil {
		return nil, oneLine(err)
	}
	return parsed, nil
}

func oneLine(err error) error {
	return fmt.Errorf("%s", strings.Join(strings.Fields(err.Error()), " "))
}

func (p *Policy) metrics() []prometheus.Collector {
	if p.file == "" {
		return nil
	}
	var all []prometheus.Collector
	for result, n := range map[string]*atomic.Int64{"success": &p.reloads, "failure": &p.refusals} {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "annex_audit_policy_reloads_total",
			Help:        "Reloads of the audit policy file, by result.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(n.Load()) }))
	}
	return all
}

// defaultPolicy records the caller and the metadata of requests: one event per request, and two per watch. It
// excludes frequent requests of authenticated and anonymous callers for paths without objects, and reads by the
// server itself. Callers that fail authentication belong to no group, so all of their requests are recorded.
func defaultPolicy(strict bool) *auditinternal.Policy {
	known := []string{user.AllAuthenticated, user.AllUnauthenticated}
	p := &auditinternal.Policy{
		Rules: []auditinternal.PolicyRule{{
			Level:      auditinternal.LevelNone,
			UserGroups: known,
			NonResourceURLs: []string{"/healthz*", "/livez*", "/readyz*", "/metrics", "/version", "/version/",
				"/api", "/api/*", "/apis", "/apis/*", "/openapi/*"},
		}, {
			Level: auditinternal.LevelNone,
			Users: []string{user.APIServerUser},
			Verbs: []string{"get", "list", "watch"},
		}, {
			Level: auditinternal.LevelMetadata,
		}},
	}
	if !strict { // a strict server rejects requests by the event of their receipt
		p.OmitStages = []auditinternal.Stage{auditinternal.StageRequestReceived}
	}
	return p
}
