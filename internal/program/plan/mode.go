package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/cluster"
	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/identity/rights"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/standalone/fairness"
	"github.com/annexapi/annex/internal/standalone/leading"
	"github.com/annexapi/annex/store/driver"
)

const (
	// certificateLifetime is that of a serving certificate unless the options say otherwise.
	certificateLifetime = 30 * 24 * time.Hour
	// minCertificateLifetime leaves clusters the time to notice what has changed.
	minCertificateLifetime = 30 * time.Second
)

// Mode is where a server gets its callers, their rights and its namespaces from. The plan is the only place
// that chooses it.
type Mode int

// The modes.
const (
	// Standalone servers keep them.
	Standalone Mode = iota
	// ControlPlane servers keep them, and are a whole cluster's API.
	ControlPlane
	// Aggregated servers ask the cluster in front of them.
	Aggregated
	// SelfCertified servers are aggregated and keep their serving certificate in the cluster.
	SelfCertified
)

// mode is how a server gets its namespaces, and what its options may say for that.
type mode interface {
	// builtIn are the stored kinds that the server has besides the definition's.
	builtIn() []define.Group
	// keepsNamespaces is nil, or why namespaces are not stored.
	keepsNamespaces() error
	// admissionPlugins are those that run without being declared, unless disabled.
	admissionPlugins() []string
	// check returns the first mistake in the groups that the user declared.
	check(*define.Server) error
	// complete fills in defaults, and returns the first mistake.
	complete(*Plan) error
	// requirements are what the server asks of its cluster, and what is left out.
	requirements(*Plan) (required []requirements.Requirement, leftOut []string)
}

// modeOf chooses the mode, and returns its part in the plan.
func modeOf(definition *define.Server, o *config.Options) (Mode, mode) {
	switch {
	case o.Aggregated && o.SelfCertify.Enabled:
		return SelfCertified, aggregated{}
	case o.Aggregated:
		return Aggregated, aggregated{}
	case definition.Plane != nil:
		return ControlPlane, controlPlane{standalone{fair: isFair(definition, o)}, definition.Plane}
	default:
		return Standalone, standalone{fair: isFair(definition, o), added: leading.Groups(definition)}
	}
}

// standalone has no cluster in front. If it is fair, it has flow schemas and priority levels.
type standalone struct {
	fair bool
	// added are groups that its controllers need.
	added []define.Group
}

func (m standalone) builtIn() []define.Group {
	groups := []define.Group{rights.Group(), accounts.Group()}
	if m.fair {
		groups = append(groups, fairness.Group())
	}
	return merge(groups, m.added)
}

func (standalone) check(*define.Server) error { return nil }

func (standalone) keepsNamespaces() error { return nil }

func (standalone) complete(p *Plan) error {
	for _, part := range []struct {
		field string
		value reflect.Value
	}{{"Cluster", reflect.ValueOf(p.Options.Cluster)}, {"SelfCertify", reflect.ValueOf(p.Options.SelfCertify)}} {
		for i := range part.value.NumField() {
			if !part.value.Field(i).IsZero() {
				field := "Options." + part.field + "." + part.value.Type().Field(i).Name
				return fmt.Errorf("%s is for a server in a cluster: add Options.Aggregated", field)
			}
		}
	}
	if err := p.completeFairness(); err != nil {
		return err
	}
	if err := completeAuthorization(&p.Options); err != nil {
		return err
	}
	if err := completeCallers(&p.Options); err != nil {
		return err
	}
	if err := p.completeKubeconfig(); err != nil {
		return err
	}
	if err := p.completeAccounts(); err != nil {
		return err
	}
	return p.completeLogin()
}

func (standalone) requirements(*Plan) ([]requirements.Requirement, []string) { return nil, nil }

// controlPlane stands alone, and is all that a cluster's API is.
type controlPlane struct {
	standalone
	plane *define.Plane
}

func (m controlPlane) builtIn() []define.Group {
	return merge(m.standalone.builtIn(), m.plane.Groups())
}

// merge adds groups to others, and their kinds to those of a group that is there.
func merge(groups, more []define.Group) []define.Group {
	for _, added := range more {
		i := slices.IndexFunc(groups, func(g define.Group) bool { return g.Name == added.Name })
		if i < 0 {
			groups = append(groups, added)
			continue
		}
		groups[i].Kinds = append(groups[i].Kinds, added.Kinds...)
	}
	return groups
}

func (m controlPlane) admissionPlugins() []string { return m.plane.AdmissionPlugins }

// aggregated has a cluster in front, whose namespaces its objects are in.
type aggregated struct{}

func (aggregated) builtIn() []define.Group { return nil }

func (aggregated) check(definition *define.Server) error { return define.CheckAggregated(definition) }

func (aggregated) keepsNamespaces() error {
	return errors.New("namespaces are the cluster's when the server is aggregated")
}

func (aggregated) complete(p *Plan) error {
	o := &p.Options
	if p.Definition.Plane != nil {
		return errors.New("Options.Aggregated is for a server behind a cluster's API, but Server.ControlPlane makes this one such an API " +
			"itself: leave one of them out")
	}
	if err := refuseCallers(o); err != nil {
		return err
	}
	if err := refuseAuthorization(o); err != nil {
		return err
	}
	if err := errors.Join(noAccounts(o), refuseLogin(o)); err != nil {
		return err
	}
	if o.Cluster.LeaseNamespace == "" && cluster.InPod() {
		o.Cluster.LeaseNamespace = cluster.PodNamespace()
	}
	if namespace := o.Cluster.LeaseNamespace; namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
		return fmt.Errorf("Options.Cluster.LeaseNamespace %q: %s", namespace, validation.IsDNS1123Label(namespace)[0])
	}
	if err := p.completeFairness(); err != nil {
		return err
	}
	return p.completeSelfCertify()
}

func (aggregated) requirements(p *Plan) (required []requirements.Requirement, leftOut []string) {
	o := &p.Options
	_, leftOut = requirements.Enabled(o.Admission)
	if !*o.PriorityAndFairness {
		leftOut = append(leftOut, "priority and fairness")
	}
	required = requirements.Of(*o)
	if o.SelfCertify.Enabled {
		required = append(required, requirements.OfServing(o.SelfCertify, p.Definition.APIServiceNames())...)
	}
	if len(p.Controllers) > 0 && o.Cluster.LeaseNamespace != "" {
		required = append(required, requirements.OfControllers(p.Definition.Name, o.Cluster.LeaseNamespace))
	}
	return required, leftOut
}

// completeMode finds the certificate that the directory of certificates holds, and does what
// depends on the mode.
func (p *Plan) completeMode() error {
	o := &p.Options
	if o.TLSCertFile == "" && o.TLSPrivateKeyFile == "" && o.CertDir != "" {
		// The names that upstream's servers give them.
		cert, key := filepath.Join(o.CertDir, "apiserver.crt"), filepath.Join(o.CertDir, "apiserver.key")
		if isFile(cert) && isFile(key) {
			o.TLSCertFile, o.TLSPrivateKeyFile = cert, key
		}
	}
	return p.mode.complete(p)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// completeSelfCertify fills in defaults and returns the first mistake.
func (p *Plan) completeSelfCertify() error {
	o, s := &p.Options, &p.Options.SelfCertify
	if *s == (config.SelfCertifyOptions{}) {
		return nil
	}
	switch {
	case !s.Enabled:
		return errors.New("Options.SelfCertify.ServiceName, Options.SelfCertify.ServiceNamespace, Options.SelfCertify.Lifetime and " +
			"Options.SelfCertify.Workload are for Options.SelfCertify.Enabled")
	case o.TLSCertFile != "" || o.TLSPrivateKeyFile != "":
		return errors.New("Options.SelfCertify.Enabled makes the certificate that Options.TLSCertFile names: give one of them")
	case s.Lifetime < 0 || s.Lifetime > 0 && s.Lifetime < minCertificateLifetime:
		return fmt.Errorf("Options.SelfCertify.Lifetime %s is less than %s", s.Lifetime, minCertificateLifetime)
	}
	if s.Lifetime == 0 {
		s.Lifetime = certificateLifetime
	}
	if s.ServiceName == "" {
		s.ServiceName = p.Definition.Name
	}
	if s.ServiceNamespace == "" {
		if s.ServiceNamespace = cluster.PodNamespace(); s.ServiceNamespace == "" {
			return errors.New("Options.SelfCertify.Enabled needs Options.SelfCertify.ServiceNamespace: this is no pod, whose namespace it would be")
		}
	}
	for _, label := range []struct{ field, value string }{{"Options.SelfCertify.ServiceName", s.ServiceName},
		{"Options.SelfCertify.ServiceNamespace", s.ServiceNamespace}} {
		if mistakes := validation.IsDNS1123Label(label.value); len(mistakes) > 0 {
			return fmt.Errorf("%s %q: %s", label.field, label.value, mistakes[0])
		}
	}
	if s.Workload == "" {
		return nil
	}
	resource, name, ok := strings.Cut(s.Workload, "/")
	if !ok || !slices.Contains([]string{"deployments", "statefulsets"}, resource) || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("Options.SelfCertify.Workload %q: want deployments/NAME or statefulsets/NAME", s.Workload)
	}
	return nil
}

// Requirements are what an aggregated server asks of its cluster, line by line, and what is
// left out; nothing if the server stands alone.
func (p *Plan) Requirements() (required []requirements.Requirement, leftOut []string) {
	return p.mode.requirements(p)
}

// KeepsObjects says whether objects outlive the server on this machine.
func (p *Plan) KeepsObjects() bool {
	keeps := func(t driver.Traits) bool { return !t.Remote && !t.Ephemeral }
	return keeps(p.Options.Storage.Traits()) || slices.ContainsFunc(p.Storages, func(s *Storage) bool { return keeps(s.Traits()) })
}

// KeepsNothing says whether the server needs no data directory: it has no authority of its own,
// its objects are elsewhere, and so is its certificate.
func (p *Plan) KeepsNothing() bool {
	o := &p.Options
	return o.Aggregated && !p.KeepsObjects() && (o.CertDir != "" || o.TLSCertFile != "" || o.SelfCertify.Enabled)
}
