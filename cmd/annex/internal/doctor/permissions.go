package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// account is the service account with which the server calls the cluster.
type account struct {
	namespace, name string
	from            string // the source of the name
}

func (a *account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

func checkAccount(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	a := p.findAccount(ctx)
	if a == nil {
		return unseen("unknown service account, because the Service has no pods: set --service-account NAMESPACE/NAME")
	}
	if _, err := p.host.core.CoreV1().ServiceAccounts(a.namespace).Get(ctx, a.name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return wrong(Broken, ReasonNoServiceAccount, "the service account %s/%s, %s, does not exist", a.namespace, a.name, a.from).
			repairedBy(fmt.Sprintf("kubectl -n %s create serviceaccount %s", a.namespace, a.name))
	}
	if a.name == "default" {
		return wrong(
			Doubtful,
			ReasonDefaultAccount,
			"%s/default, %s: all pods of the namespace without a service account of their own have the same permissions",
			a.namespace,
			a.from,
		).
			repairedBy(fmt.Sprintf("kubectl -n %s create serviceaccount NAME   # and set serviceAccountName of the pods", a.namespace))
	}
	return ok("%s/%s, %s", a.namespace, a.name, a.from)
}

// findAccount returns the server's service account, or nil if no option, pod or workload names it.
func (p *examination) findAccount(ctx context.Context) *account {
	if p.account != nil {
		return p.account
	}
	if namespace, name, both := strings.Cut(p.options.ServiceAccount, "/"); both {
		p.account = &account{namespace, name, "by --service-account"}
		return p.account
	}
	found := &account{}
	for _, pod := range p.findBackends(ctx).pods {
		found.namespace, found.name, found.from = pod.Namespace, pod.Spec.ServiceAccountName, "that of the pod "+pod.Name
	}
	if found.from == "" {
		for _, w := range p.workloads(ctx) {
			found.namespace, found.name, found.from = p.service.Namespace, w.serviceAccount, "that of "+w.name
		}
	}
	if found.from == "" {
		return nil
	}
	if found.name == "" {
		found.name = "default"
	}
	p.account = found
	return found
}

// describeRequirement returns a requirement as text.
func describeRequirement(n requirements.Requirement) string {
	what := n.GroupResource().String()
	if n.Name != "" {
		what += "/" + n.Name
	}
	if n.Namespace != "" {
		what += " in " + n.Namespace
	}
	return strings.Join(n.Verbs, ", ") + " " + what
}

// required returns the matching requirements of a server with all features.
func required(fits func(requirements.Requirement) bool) []requirements.Requirement {
	return slices.DeleteFunc(requirements.Of(config.Options{}), func(n requirements.Requirement) bool { return !fits(n) })
}

// boundTo returns the requirements that a cluster role grants.
func boundTo(role requirements.Role) []requirements.Requirement {
	return required(func(n requirements.Requirement) bool { return n.Binding == role })
}

// admits returns the requirements of the cluster's admission, flowControls those of priority and fairness.
func admits() []requirements.Requirement {
	return required(func(n requirements.Requirement) bool {
		return n.Group == requirements.AdmissionGroup || n.GroupVersionResource == requirements.Namespaces
	})
}

func flowControls() []requirements.Requirement {
	return required(func(n requirements.Requirement) bool { return n.Group == requirements.FlowSchemas.Group })
}

// missing returns the permissions that the server's account lacks.
func (p *examination) missing(ctx context.Context, needed []requirements.Requirement) ([]requirements.Requirement, error) {
	var missing []requirements.Requirement
	a := p.account
	for _, need := range needed {
		lacks := need
		lacks.Verbs = nil
		for _, verb := range need.Verbs {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   a.user(),
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: need.Group, Resource: need.Resource, Verb: verb, Namespace: need.Namespace, Name: need.Name,
				},
			}}
			answered, err := p.host.core.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			if !answered.Status.Allowed {
				lacks.Verbs = append(lacks.Verbs, verb)
			}
		}
		if len(lacks.Verbs) > 0 {
			missing = append(missing, lacks)
		}
	}
	return missing, nil
}

// review checks permissions and returns the missing ones. If the finding has no state, the caller judges the missing
// permissions.
func (p *examination) review(ctx context.Context, needed []requirements.Requirement) ([]requirements.Requirement, Finding) {
	if f, remote := p.remote(); !remote {
		return nil, f
	}
	if p.findAccount(ctx) == nil {
		return nil, unseen("unknown service account of the server")
	}
	missing, err := p.missing(ctx, needed)
	if err != nil {
		return nil, mayNot("create subjectaccessreviews", err)
	}
	if len(missing) == 0 {
		return nil, ok("%s has all required permissions", p.account.user())
	}
	return missing, Finding{}
}

func describeMissing(missing []requirements.Requirement) []string {
	var lines []string
	for _, m := range missing {
		lines = append(lines, "it may not "+describeRequirement(m))
	}
	return lines
}

func (p *examination) bindingName(role string) string {
	return p.account.name + "." + p.account.namespace + ":" + role
}

func (p *examination) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.account.namespace, Name: p.account.name}}
}

func checkAuthReader(ctx context.Context, p *examination) Finding {
	missing, f := p.review(ctx, boundTo(requirements.Reader))
	if f.State != "" {
		return f
	}
	a, name := p.account, p.bindingName(requirements.Reader.Name)
	f = wrong(
		Broken,
		ReasonAuthReaderMissing,
		"%s may not read the front proxy's certificate authority: it has no binding to the role %s in kube-system",
		a.user(),
		requirements.Reader.Name,
	).
		seenIn(describeMissing(missing)...).
		repairedBy(fmt.Sprintf("kubectl -n kube-system create rolebinding %s --role=%s --serviceaccount=%s:%s", name,
			requirements.Reader.Name, a.namespace, a.name))
	f.fix = &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: requirements.Reader.Name},
		Subjects:   p.subjects(),
	}
	return f
}

func checkDelegator(ctx context.Context, p *examination) Finding {
	missing, f := p.review(ctx, boundTo(requirements.Delegator))
	if f.State != "" {
		return f
	}
	a, name := p.account, p.bindingName(requirements.Delegator.Name)
	f = wrong(Broken, ReasonDelegatorMissing, "%s may not create TokenReviews and SubjectAccessReviews: it has no binding to the "+
		"ClusterRole %s", a.user(), requirements.Delegator.Name).
		seenIn(describeMissing(missing)...).
		repairedBy(fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --serviceaccount=%s:%s", name,
			requirements.Delegator.Name, a.namespace, a.name))
	f.fix = &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: requirements.Delegator.Name},
		Subjects:   p.subjects(),
	}
	return f
}

// checkAdmission checks the permissions for the cluster's admission: webhooks, policies and namespaces. A server
// without writes needs none of them, and a server may be configured to leave admission out, which cannot be seen from
// here. The link is broken if the server accepts writes and does not work, since this is then the likely reason.
func checkAdmission(ctx context.Context, p *examination) Finding {
	served, err := p.admissionKinds(ctx)
	if err != nil {
		return mayNot("read the API group admissionregistration.k8s.io", err)
	}
	needed := slices.DeleteFunc(admits(), func(n requirements.Requirement) bool {
		return n.Group == requirements.AdmissionGroup && !served[n.Resource]
	})
	missing, f := p.review(ctx, needed)
	if f.State != "" {
		return f
	}
	writes, known := p.takesWrites(ctx)
	status, _, _ := p.api.available()
	switch {
	case known && !writes:
		return ok("the server accepts no writes, so webhooks and policies do not apply")
	case status == "True":
		f = wrong(Doubtful, ReasonAdmissionMissing, "if the server runs with these admission plugins disabled, the cluster's webhooks and "+
			"policies do not apply to its objects")
	case !known:
		f = wrong(Doubtful, ReasonAdmissionMissing, "%s may not read the cluster's webhooks and policies: a server that accepts writes is "+
			"not ready without them, unless their admission plugins are disabled", p.account.user())
	default:
		f = wrong(Broken, ReasonAdmissionMissing, "%s may not read the cluster's webhooks and policies: a server is not ready without "+
			"them, unless their admission plugins are disabled", p.account.user())
	}
	return f.seenIn(describeMissing(missing)...).repairedBy(p.grant("admission", missing)...)
}

// admissionKinds returns the admission resources that the cluster has.
func (p *examination) admissionKinds(ctx context.Context) (map[string]bool, error) {
	var list metav1.APIResourceList
	if err := p.host.read(ctx, "/apis/"+requirements.AdmissionGroup+"/v1", &list); err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for _, r := range list.APIResources {
		served[r.Name] = true
	}
	return served, nil
}

// takesWrites reports whether the server has resources that can be created or changed.
func (p *examination) takesWrites(ctx context.Context) (writes, known bool) {
	groups, err := p.host.discovered(ctx)
	if err != nil {
		return false, false
	}
	for _, g := range groups {
		if g.Name != p.api.Spec.Group {
			continue
		}
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				known = true
				writes = writes || slices.ContainsFunc(r.Verbs, func(verb string) bool {
					return verb == "create" || verb == "update" || verb == "patch" || verb == "delete"
				})
			}
		}
	}
	return writes, known
}

func checkFlowControl(ctx context.Context, p *examination) Finding {
	missing, f := p.review(ctx, flowControls())
	if f.State != "" {
		return f
	}
	return wrong(Doubtful, ReasonFlowControlMissing, "the cluster's priority levels do not apply: the server uses its own limits on "+
		"concurrent requests, if it has any").
		seenIn(describeMissing(missing)...).repairedBy(p.grant("flow-control", missing)...)
}

// grant returns the command for a role with permissions, and its binding to the server's account.
func (p *examination) grant(what string, missing []requirements.Requirement) []string {
	name := p.bindingName(what)
	lines := []string{
		"kubectl apply -f - <<'EOF'",
		"apiVersion: rbac.authorization.k8s.io/v1", "kind: ClusterRole", "metadata:", "  name: " + name, "rules:",
	}
	for i, m := range missing {
		if i > 0 && missing[i-1].Group == m.Group && slices.Equal(missing[i-1].Verbs, m.Verbs) {
			last := len(lines) - 2
			lines[last] = strings.TrimSuffix(lines[last], "]") + ", " + m.Resource + "]"
			continue
		}
		lines = append(lines,
			fmt.Sprintf("- apiGroups: [%q]", m.Group),
			"  resources: ["+m.Resource+"]",
			"  verbs: ["+strings.Join(m.Verbs, ", ")+"]")
	}
	lines = append(
		lines,
		"EOF",
		fmt.Sprintf(
			"kubectl create clusterrolebinding %s --clusterrole=%s --serviceaccount=%s:%s",
			name,
			name,
			p.account.namespace,
			p.account.name,
		),
	)
	return lines
}
