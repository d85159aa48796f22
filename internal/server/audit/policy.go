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

// Policy says which events there are, and what is in them.
type Policy struct {
	file    string // empty for the default
	current atomic.Pointer[audit.PolicyRuleEvaluator]
	// read is of the file as it is in force, and refused of what was refused last.
	read              string
	refused           string
	reloads, refusals atomic.Int64
}

var _ audit.PolicyRuleEvaluator = (*Policy)(nil)

// openPolicy reads a file; without one it is the default. Strict is for servers that refuse
// requests whose receipt cannot be recorded.
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

// EvaluatePolicyRule implements audit.PolicyRuleEvaluator. Of requests that are about bearer
// tokens, no body is recorded, whatever the policy says: a log of credentials would be a way
// to use them.
func (p *Policy) EvaluatePolicyRule(a authorizer.Attributes) audit.RequestAuditConfig {
	config := (*p.current.Load()).EvaluatePolicyRule(a)
	if auditinternal.LevelMetadata.Less(config.Level) && hasToken(a) {
		config.Level = auditinternal.LevelMetadata
	}
	return config
}

// hasToken says whether a request or its answer has a bearer token in its body.
func hasToken(a authorizer.Attributes) bool {
	switch a.GetAPIGroup() {
	case corev1.GroupName:
		return a.GetResource() == "serviceaccounts" && a.GetSubresource() == "token"
	case authnv1.GroupName:
		return a.GetResource() == "tokenreviews"
	}
	return false
}

// run reads the file again when it changes, until ctx is done.
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

// parsePolicy refuses fields that it does not know, which upstream logs: a rule that lacks what
// its author meant is another rule.
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
			Help:        "Changes of the audit policy's file, by whether they came into force.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(n.Load()) }))
	}
	return all
}

// defaultPolicy records who did what, once for each request, and twice for watches. It leaves
// out what known callers, and programs of theirs, ask all the time and what holds no objects.
// Callers who are refused by authentication are in no group, so that all of theirs is recorded.
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
	if !strict { // the receipt is what a strict server refuses requests by
		p.OmitStages = []auditinternal.Stage{auditinternal.StageRequestReceived}
	}
	return p
}
