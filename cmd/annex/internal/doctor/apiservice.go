package doctor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/annexapi/annex/internal/base/typo"
)

// apiService holds the fields of an APIService that the doctor reads. Upstream's type is in a module that depends on
// an API server.
type apiService struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Service               *serviceReference `json:"service"`
		Group                 string            `json:"group"`
		Version               string            `json:"version"`
		InsecureSkipTLSVerify bool              `json:"insecureSkipTLSVerify"`
		CABundle              []byte            `json:"caBundle"`
		GroupPriorityMinimum  int32             `json:"groupPriorityMinimum"`
		VersionPriority       int32             `json:"versionPriority"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

type serviceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      int32  `json:"port"`
}

func (s *serviceReference) String() string {
	return fmt.Sprintf("%s/%s:%d", s.Namespace, s.Name, s.Port)
}

// dnsName returns the name by which the API server addresses the server, and which the server's certificate has to
// contain.
func (s *serviceReference) dnsName() string { return s.Name + "." + s.Namespace + ".svc" }

func (s *apiService) path() string { return "/apis/" + s.Spec.Group + "/" + s.Spec.Version }

// available returns the condition Available that the API server maintains, or empty strings if there is none yet.
func (s *apiService) available() (status, reason, message string) {
	for _, c := range s.Status.Conditions {
		if c.Type == "Available" {
			return c.Status, c.Reason, c.Message
		}
	}
	return "", "", ""
}

// local reports whether the API server itself serves the version: as a built-in version, or by a
// CustomResourceDefinition.
func (s *apiService) local() bool { return s.Spec.Service == nil }

// builtIn reports whether the version is built into the API server.
func (s *apiService) builtIn() bool {
	return s.local() && s.Labels["kube-aggregator.kubernetes.io/automanaged"] == "onstart"
}

func (s *apiService) owner() string {
	switch {
	case s.builtIn():
		return "the API server itself"
	case s.local():
		return "a CustomResourceDefinition"
	}
	return "the Service " + s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
}

// writer returns the last field manager of a field of the spec, if the object records it.
func (s *apiService) writer(field string) string {
	for _, m := range s.ManagedFields {
		if m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.GetRawBytes()), `"f:`+field+`"`) && m.Time != nil {
			return fmt.Sprintf("%s was last written by %q at %s", field, m.Manager, m.Time.UTC().Format("2006-01-02 15:04:05Z"))
		}
	}
	return ""
}

func (h *host) apiServices(ctx context.Context) ([]apiService, error) {
	var list struct{ Items []apiService }
	if err := h.read(ctx, "/apis/apiregistration.k8s.io/v1/apiservices", &list); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the server at %s does not serve APIServices: it is not the kube-apiserver of a cluster", h.base)
	} else if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	for i := range list.Items {
		if s := list.Items[i].Spec.Service; s != nil && s.Port == 0 {
			s.Port = 443
		}
	}
	return list.Items, nil
}

// CheckName returns an error if a name from the user cannot name APIServices.
func CheckName(name string) error {
	first, version, both := strings.Cut(name, "/")
	if name == "" || first == "" || both && (version == "" || strings.Contains(version, "/")) || strings.ContainsAny(name, " ,_:") ||
		name != strings.ToLower(name) {
		return fmt.Errorf("%q matches no APIService: use VERSION.GROUP, GROUP/VERSION or GROUP, such as v1alpha1.wardle.example.com", name)
	}
	return nil
}

// chosen returns the names of the selected APIServices, including names that do not exist.
func chosen(all []apiService, names []string) []string {
	var found []string
	add := func(name string) {
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	if len(names) == 0 {
		for _, s := range all {
			if !s.local() {
				add(s.Name)
			}
		}
	}
	for _, name := range names {
		if group, version, both := strings.Cut(name, "/"); both {
			name = version + "." + group
		}
		before := len(found)
		for _, s := range all {
			if s.Name == name || s.Spec.Group == name {
				add(s.Name)
			}
		}
		if len(found) == before {
			add(name)
		}
	}
	return found
}

// examination is the APIService under examination, with the results of earlier checks.
type examination struct {
	host    *host
	options Options
	name    string
	all     []apiService

	api      *apiService // nil if it does not exist
	service  *corev1.Service
	slices   []discoveryv1.EndpointSlice
	backends *backends
	answered *proxyResult
	leaf     *servingCertificate
	account  *account
	reader   *resource
}

func checkRegistration(_ context.Context, p *examination) Finding {
	i := slices.IndexFunc(p.all, func(s apiService) bool { return s.Name == p.name })
	if i < 0 {
		return notRegistered(p)
	}
	p.api = &p.all[i]
	if p.api.local() {
		return ok("%s serves it: no Service to check", p.api.owner())
	}
	status, reason, _ := p.api.available()
	if status == "" {
		return ok("points to the Service %s; its status has no condition Available yet", p.api.Spec.Service)
	}
	return ok("points to the Service %s; Available is %s (%s)", p.api.Spec.Service, status, reason)
}

func notRegistered(p *examination) Finding {
	f := wrong(Broken, ReasonNotRegistered, "the APIService %s does not exist", p.name)
	best := ""
	for _, s := range p.all {
		if d := typo.Distance(p.name, s.Name); d <= len(p.name)/4 && (best == "" || d < typo.Distance(p.name, best)) {
			best = s.Name
		}
	}
	if best != "" {
		f.Message += ": did you mean " + best + "?"
		return f.repairedBy("annex doctor " + best)
	}
	return f.repairedBy(
		"kubectl get apiservices   # lists existing APIServices",
		"SERVER manifests | kubectl apply -f -   # a server made with Annex prints its APIServices")
}

// remote returns a finding for an APIService without a Service, which the API server serves itself, and reports
// whether the APIService has a Service.
func (p *examination) remote() (Finding, bool) {
	return unseen("the API server serves it itself"), !p.api.local()
}

// checkPriorities looks for other APIServices and groups that claim the group or its resources' names. Numeric
// priorities decide which of them clients reach, so that may change.
func checkPriorities(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	f, hidden := p.customResourceClash(ctx)
	if f.State != "" {
		return f
	}
	siblings := p.siblings()
	for _, s := range siblings {
		if s.owner() != p.api.owner() {
			return p.claimedTwice(siblings)
		}
	}
	f, more := p.resourceClash(ctx)
	if f.State != "" {
		return f
	}
	for _, s := range siblings {
		if s.Spec.GroupPriorityMinimum != p.api.Spec.GroupPriorityMinimum {
			return wrong(Doubtful, ReasonPriorityClash, "%s has groupPriorityMinimum %d and %s has %d: the highest value applies to the "+
				"whole group",
				p.name, p.api.Spec.GroupPriorityMinimum, s.Name, s.Spec.GroupPriorityMinimum).
				repairedBy(patch(p.name, fmt.Sprintf(`{"spec":{"groupPriorityMinimum":%d}}`, p.groupPriority())))
		}
		older, newer := p.api, s
		if version.CompareKubeAwareVersionStrings(older.Spec.Version, newer.Spec.Version) > 0 {
			older, newer = newer, older
		}
		if older != newer && older.Spec.VersionPriority > newer.Spec.VersionPriority {
			return wrong(Doubtful, ReasonPriorityClash, "clients prefer %s (versionPriority %d) to the more stable version %s (%d)",
				older.Spec.Version, older.Spec.VersionPriority, newer.Spec.Version, newer.Spec.VersionPriority).
				repairedBy(patch(newer.Name, fmt.Sprintf(`{"spec":{"versionPriority":%d}}`, older.Spec.VersionPriority+1)))
		}
	}
	return ok(
		"no other API claims the group; groupPriorityMinimum %d, versionPriority %d%s%s",
		p.groupPriority(),
		p.api.Spec.VersionPriority,
		hidden,
		more,
	)
}

// siblings returns the versions of the group, including the examined one, the preferred one first.
func (p *examination) siblings() []*apiService {
	var found []*apiService
	for i := range p.all {
		if p.all[i].Spec.Group == p.api.Spec.Group {
			found = append(found, &p.all[i])
		}
	}
	slices.SortFunc(found, func(a, b *apiService) int {
		if a.Spec.VersionPriority != b.Spec.VersionPriority {
			return int(b.Spec.VersionPriority - a.Spec.VersionPriority)
		}
		return version.CompareKubeAwareVersionStrings(b.Spec.Version, a.Spec.Version)
	})
	return found
}

func (p *examination) groupPriority() int32 { return groupPriority(p.all, p.api.Spec.Group) }

func groupPriority(all []apiService, group string) int32 {
	highest := int32(0)
	for _, s := range all {
		if s.Spec.Group == group {
			highest = max(highest, s.Spec.GroupPriorityMinimum)
		}
	}
	return highest
}

func (p *examination) claimedTwice(siblings []*apiService) Finding {
	f := wrong(
		Broken,
		ReasonGroupClaimedTwice,
		"different servers serve the versions of %s: versionPriority decides which server clients use",
		p.api.Spec.Group,
	)
	for _, s := range siblings {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s (groupPriorityMinimum %d, versionPriority %d) is served by %s",
			s.Name, s.Spec.GroupPriorityMinimum, s.Spec.VersionPriority, s.owner()))
	}
	repair := []string{"# One server must serve all versions of a group. Delete the APIServices of the other:"}
	for _, s := range siblings {
		repair = append(repair, "kubectl delete apiservice "+s.Name+"   # "+s.owner())
	}
	return f.repairedBy(append(repair, "# or use another group for one of the two servers.")...)
}

// customResourceClash looks for a CustomResourceDefinition of the same version, whose objects are unreachable as long
// as the APIService exists. hidden is set if the definitions cannot be read.
func (p *examination) customResourceClash(ctx context.Context) (clash Finding, hidden string) {
	all, err := p.host.customResources(ctx)
	if err != nil {
		return Finding{}, "; CustomResourceDefinitions cannot be read"
	}
	for _, crd := range all {
		for _, v := range crd.Spec.Versions {
			if crd.Spec.Group == p.api.Spec.Group && v.Name == p.api.Spec.Version && v.Served {
				return wrong(
						Broken,
						ReasonCustomResourceClash,
						"the CustomResourceDefinition %s has the same group and version: clients cannot reach its objects",
						crd.Name,
					).
						seenIn("requests for "+p.api.path()+" go to "+p.api.owner()).
						repairedBy(
							"# To use the custom resources again, delete the APIService:",
							"kubectl delete apiservice "+p.name,
							"# To keep the server, move the objects first: with the APIService gone,",
							"kubectl get "+crd.Name+" -A -o yaml > objects.yaml",
							"# then delete the definition, which deletes them, and apply the APIService and objects.yaml."),
					""
			}
		}
	}
	return Finding{}, ""
}

// customResource holds the fields of a CustomResourceDefinition that the doctor reads.
type customResource struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group    string
		Versions []struct {
			Name   string
			Served bool
		}
	}
}

// customResources returns the CustomResourceDefinitions, which are read once.
func (h *host) customResources(ctx context.Context) ([]customResource, error) {
	if h.definitions != nil {
		return h.definitions, nil
	}
	list := struct{ Items []customResource }{}
	if err := h.read(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &list); err != nil {
		return nil, err
	}
	h.definitions = append([]customResource{}, list.Items...)
	return h.definitions, nil
}

const aggregatedDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discovered returns the API server's discovery of all groups, read once. For the examined server, it is the state of
// the API server's last discovery.
func (h *host) discovered(ctx context.Context) ([]apidiscovery.APIGroupDiscovery, error) {
	if h.groups != nil {
		return h.groups, nil
	}
	var groups []apidiscovery.APIGroupDiscovery
	for _, path := range []string{"/api", "/apis"} {
		var list apidiscovery.APIGroupDiscoveryList
		if err := h.read(ctx, path, &list, aggregatedDiscovery); err != nil {
			return nil, err
		}
		groups = append(groups, list.Items...)
	}
	h.groups = groups
	return groups, nil
}

// resourceClash looks for resources of the same name in another group. kubectl takes the group with the higher
// priority, and for equal priorities the first by the name of the APIService, which begins with the version.
func (p *examination) resourceClash(ctx context.Context) (clash Finding, hidden string) {
	groups, err := p.host.discovered(ctx)
	if err != nil {
		return Finding{}, "; resources of other groups cannot be read"
	}
	own := namesIn(groups, p.api.Spec.Group)
	for _, g := range groups {
		if g.Name == p.api.Spec.Group || groupPriority(p.all, g.Name) > p.groupPriority() {
			continue
		}
		for _, theirs := range namesIn(groups, g.Name) {
			i := slices.IndexFunc(own, func(ours resourceName) bool { return ours.name == theirs.name })
			if i < 0 {
				continue
			}
			f := p.clash(g.Name, theirs.name)
			if !theirs.plural || !own[i].plural {
				f.State = Doubtful // an abbreviation
			}
			return f, ""
		}
	}
	return Finding{}, ""
}

func (p *examination) clash(group, name string) Finding {
	ours, theirs, of, suffix := p.groupPriority(), groupPriority(p.all, group), group, "."+group
	if group == "" {
		of, suffix = "the core group", ""
	}
	f := wrong(Broken, ReasonPriorityClash, "%s also has resources named %s: both have groupPriorityMinimum %d, so kubectl's choice "+
		"depends on their versions", of, name, ours)
	switch owner := p.ownerOf(group); {
	case theirs < ours && owner != nil && !owner.builtIn():
		f = wrong(
			Doubtful,
			ReasonPriorityClash,
			"%s also has resources named %s: kubectl chooses yours, because its groupPriorityMinimum %d is above %d",
			of,
			name,
			ours,
			theirs,
		)
	case theirs < ours:
		f = wrong(Broken, ReasonPriorityClash, "%s has the name of a built-in resource of %s: kubectl chooses yours, because its "+
			"groupPriorityMinimum %d is above %d", name, of, ours, theirs)
	}
	repair := []string{"# Lower the priority of your group, or rename the resource:"}
	for _, s := range p.siblings() {
		repair = append(repair, patch(s.Name, fmt.Sprintf(`{"spec":{"groupPriorityMinimum":%d}}`, max(1, theirs-1))))
	}
	return f.seenIn(fmt.Sprintf("kubectl get %s.%s and kubectl get %s%s are unambiguous", name, p.api.Spec.Group, name, suffix)).
		repairedBy(repair...)
}

func (p *examination) ownerOf(group string) *apiService {
	for i := range p.all {
		if p.all[i].Spec.Group == group {
			return &p.all[i]
		}
	}
	return nil
}

// resourceName is a name that kubectl accepts for a resource.
type resourceName struct {
	name   string
	plural bool // the plural name, and not the singular or an abbreviation
}

// namesIn returns the resource names of a group, plurals first.
func namesIn(groups []apidiscovery.APIGroupDiscovery, group string) []resourceName {
	var plural, other []resourceName
	for _, g := range groups {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if g.Name != group {
					continue
				}
				plural = append(plural, resourceName{r.Resource, true})
				for _, short := range append(r.ShortNames, r.SingularResource) {
					if short != "" {
						other = append(other, resourceName{name: short})
					}
				}
			}
		}
	}
	return append(plural, other...)
}

// proxyResult is the result of a request for the version through the API server, as any client sends it.
type proxyResult struct {
	status  int    // 0 without a response
	refused bool   // the user of the kubeconfig lacks the permission
	problem string // the API server's reason for a failure
	stale   bool   // the reason is from the condition, since the API server did not try now
}

// ask requests the version, once. If the API server considers the server unavailable, it does not forward the
// request, and the reason is in the APIService's condition.
func (p *examination) ask(ctx context.Context) *proxyResult {
	if p.answered != nil {
		return p.answered
	}
	status, reason, message := p.api.available()
	condition := fmt.Sprintf("%s: %s", reason, message)
	a, err := p.host.get(ctx, p.api.path())
	p.answered = &proxyResult{status: a.status}
	switch {
	case err != nil:
		p.answered.problem = err.Error()
	case a.status/100 == 2:
	case a.status == http.StatusForbidden && status == "True":
		p.answered.refused = true
	case a.status == http.StatusServiceUnavailable && status != "" && status != "True":
		p.answered.problem, p.answered.stale = condition, true
	case a.status == http.StatusForbidden:
		p.answered.problem, p.answered.stale = condition, true
	default:
		p.answered.problem = a.failure().Error()
	}
	return p.answered
}

// accepts reports whether the API server accepts the server's connection and certificate, whatever the response is.
func (a *proxyResult) accepts() bool {
	return a.problem == "" || strings.Contains(a.problem, "bad status from ") ||
		!a.stale && a.status != 0 && a.status != http.StatusServiceUnavailable
}

// patch returns the command that patches an APIService.
func patch(name, body string) string {
	return fmt.Sprintf("kubectl patch apiservice %s --type=merge -p '%s'", name, body)
}
