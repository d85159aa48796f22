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
)

// account is the service account that the server asks the cluster as.
type account struct {
	namespace, name string
	from            string // where it was found
}

func (a *account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

func checkAccount(ctx context.Context, p *patient) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	a := p.findAccount(ctx)
	if a == nil {
		return unseen("the Service leads to no pods from which it could be known: name it by --service-account NAMESPACE/NAME")
	}
	if _, err := p.host.core.CoreV1().ServiceAccounts(a.namespace).Get(ctx, a.name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return wrong(Broken, ReasonNoServiceAccount, "there is no service account %s/%s, %s", a.namespace, a.name, a.from).
			repairedBy(fmt.Sprintf("kubectl -n %s create serviceaccount %s", a.namespace, a.name))
	}
	if a.name == "default" {
		return wrong(Doubtful, ReasonDefaultAccount, "%s/default, %s: what it may, all pods of the namespace may that name no account", a.namespace, a.from).
			repairedBy(fmt.Sprintf("kubectl -n %s create serviceaccount NAME   # and set serviceAccountName of the pods", a.namespace))
	}
	return ok("%s/%s, %s", a.namespace, a.name, a.from)
}

// findAccount returns the server's service account; nil if no option, pod or workload
// names it.
func (p *patient) findAccount(ctx context.Context) *account {
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

// permission is one thing to do.
type permission struct {
	group, resource string
	verbs           []string
	namespace, name string // of one object; empty for all
}

func (n permission) String() string {
	what := n.resource
	if n.group != "" {
		what += "." + n.group
	}
	if n.name != "" {
		what += "/" + n.name
	}
	if n.namespace != "" {
		what += " in " + n.namespace
	}
	return strings.Join(n.verbs, ", ") + " " + what
}

var (
	readsFrontProxy = []permission{{resource: "configmaps", verbs: []string{"get", "list", "watch"}, namespace: metav1.NamespaceSystem, name: configMap}}
	delegates       = []permission{
		{group: "authentication.k8s.io", resource: "tokenreviews", verbs: []string{"create"}},
		{group: "authorization.k8s.io", resource: "subjectaccessreviews", verbs: []string{"create"}},
	}
	admits = []permission{
		{resource: "namespaces", verbs: []string{"get", "list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicies", verbs: []string{"list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicybindings", verbs: []string{"list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "mutatingwebhookconfigurations", verbs: []string{"list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies", verbs: []string{"list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings", verbs: []string{"list", "watch"}},
		{group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations", verbs: []string{"list", "watch"}},
	}
	flowControls = []permission{
		{group: "flowcontrol.apiserver.k8s.io", resource: "flowschemas", verbs: []string{"list", "watch"}},
		{group: "flowcontrol.apiserver.k8s.io", resource: "prioritylevelconfigurations", verbs: []string{"list", "watch"}},
	}
)

// missing are the permissions that the server's account does not have.
func (p *patient) missing(ctx context.Context, needed []permission) ([]permission, error) {
	var missing []permission
	a := p.account
	for _, need := range needed {
		lacks := permission{group: need.group, resource: need.resource, namespace: need.namespace, name: need.name}
		for _, verb := range need.verbs {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   a.user(),
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: need.group, Resource: need.resource, Verb: verb, Namespace: need.namespace, Name: need.name,
				},
			}}
			answered, err := p.host.core.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			if !answered.Status.Allowed {
				lacks.verbs = append(lacks.verbs, verb)
			}
		}
		if len(lacks.verbs) > 0 {
			missing = append(missing, lacks)
		}
	}
	return missing, nil
}

// review asks about permissions. The finding has no state if it is for the caller to say
// what the missing ones mean.
func (p *patient) review(ctx context.Context, needed []permission) ([]permission, Finding) {
	if f, remote := p.remote(); !remote {
		return nil, f
	}
	if p.findAccount(ctx) == nil {
		return nil, unseen("the server's service account is not known")
	}
	missing, err := p.missing(ctx, needed)
	if err != nil {
		return nil, mayNot("create subjectaccessreviews", err)
	}
	if len(missing) == 0 {
		return nil, ok("%s may do all that it needs", p.account.user())
	}
	return missing, Finding{}
}

func said(missing []permission) []string {
	var lines []string
	for _, m := range missing {
		lines = append(lines, "it may not "+m.String())
	}
	return lines
}

func (p *patient) bindingName(role string) string {
	return p.account.name + "." + p.account.namespace + ":" + role
}

func (p *patient) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.account.namespace, Name: p.account.name}}
}

const (
	readerRole    = "extension-apiserver-authentication-reader"
	delegatorRole = "system:auth-delegator"
)

func checkAuthReader(ctx context.Context, p *patient) Finding {
	missing, f := p.review(ctx, readsFrontProxy)
	if f.State != "" {
		return f
	}
	a, name := p.account, p.bindingName(readerRole)
	f = wrong(Broken, ReasonAuthReaderMissing, "%s may not read by what to know the front proxy: it has no binding to the role %s in kube-system", a.user(), readerRole).
		seenIn(said(missing)...).
		repairedBy(fmt.Sprintf("kubectl -n kube-system create rolebinding %s --role=%s --serviceaccount=%s:%s", name, readerRole, a.namespace, a.name))
	f.fix = &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: readerRole},
		Subjects:   p.subjects(),
	}
	return f
}

func checkDelegator(ctx context.Context, p *patient) Finding {
	missing, f := p.review(ctx, delegates)
	if f.State != "" {
		return f
	}
	a, name := p.account, p.bindingName(delegatorRole)
	f = wrong(Broken, ReasonDelegatorMissing, "%s may not ask the cluster who a user is and what they may: it has no binding to the ClusterRole %s", a.user(), delegatorRole).
		seenIn(said(missing)...).
		repairedBy(fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --serviceaccount=%s:%s", name, delegatorRole, a.namespace, a.name))
	f.fix = &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: delegatorRole},
		Subjects:   p.subjects(),
	}
	return f
}

// checkAdmission is about what the cluster's admission asks for: webhooks, policies and
// namespaces. A server that takes no writes needs none of it, and one may be made to
// leave it out; that cannot be seen from here. It is broken if the server takes writes
// and does not work, which this is the likely reason for.
func checkAdmission(ctx context.Context, p *patient) Finding {
	served, err := p.admissionKinds(ctx)
	if err != nil {
		return mayNot("read the API group admissionregistration.k8s.io", err)
	}
	needed := slices.DeleteFunc(slices.Clone(admits), func(n permission) bool { return n.group != "" && !served[n.resource] })
	missing, f := p.review(ctx, needed)
	if f.State != "" {
		return f
	}
	writes, known := p.takesWrites(ctx)
	status, _, _ := p.api.available()
	switch {
	case known && !writes:
		return ok("the server takes no writes, to which webhooks and policies could apply")
	case status == "True":
		f = wrong(Doubtful, ReasonAdmissionMissing, "the cluster's webhooks and policies do not apply to what the server stores, if it was made to do without")
	case !known:
		f = wrong(Doubtful, ReasonAdmissionMissing, "%s may not read the cluster's webhooks and policies: a server that takes writes is not ready so, unless it was made to do without", p.account.user())
	default:
		f = wrong(Broken, ReasonAdmissionMissing, "%s may not read the cluster's webhooks and policies, without which a server is not ready unless it was made to do without", p.account.user())
	}
	return f.seenIn(said(missing)...).repairedBy(p.grant("admission", missing)...)
}

// admissionKinds are the resources of admission that the cluster has.
func (p *patient) admissionKinds(ctx context.Context) (map[string]bool, error) {
	var list metav1.APIResourceList
	if err := p.host.read(ctx, "/apis/admissionregistration.k8s.io/v1", &list); err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for _, r := range list.APIResources {
		served[r.Name] = true
	}
	return served, nil
}

// takesWrites tells whether the server has resources that can be created or changed.
func (p *patient) takesWrites(ctx context.Context) (writes, known bool) {
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

func checkFlowControl(ctx context.Context, p *patient) Finding {
	missing, f := p.review(ctx, flowControls)
	if f.State != "" {
		return f
	}
	return wrong(Doubtful, ReasonFlowControlMissing, "the cluster's flow control does not apply: the server bounds requests by numbers of its own, if at all").
		seenIn(said(missing)...).repairedBy(p.grant("flow-control", missing)...)
}

// grant is a role with permissions, and its binding to the server's account.
func (p *patient) grant(what string, missing []permission) []string {
	name := p.bindingName(what)
	lines := []string{
		"kubectl apply -f - <<'EOF'",
		"apiVersion: rbac.authorization.k8s.io/v1", "kind: ClusterRole", "metadata:", "  name: " + name, "rules:",
	}
	for i, m := range missing {
		if i > 0 && missing[i-1].group == m.group && slices.Equal(missing[i-1].verbs, m.verbs) {
			last := len(lines) - 2
			lines[last] = strings.TrimSuffix(lines[last], "]") + ", " + m.resource + "]"
			continue
		}
		lines = append(lines,
			fmt.Sprintf("- apiGroups: [%q]", m.group),
			"  resources: ["+m.resource+"]",
			"  verbs: ["+strings.Join(m.verbs, ", ")+"]")
	}
	lines = append(lines, "EOF",
		fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --serviceaccount=%s:%s", name, name, p.account.namespace, p.account.name))
	return lines
}
