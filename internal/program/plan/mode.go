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
	// certificateLifetime is the default lifetime of a serving certificate.
	certificateLifetime = 30 * 24 * time.Hour
	// minCertificateLifetime leaves a cluster enough time to notice a new certificate.
	minCertificateLifetime = 30 * time.Second
)

// Mode is the source of a server's authentication, authorization and namespaces. Only the plan chooses it.
type Mode int

// The modes.
const (
	// Standalone servers authenticate and authorize themselves and store namespaces.
	Standalone Mode = iota
	// ControlPlane servers are standalone and serve the API of a whole cluster.
	ControlPlane
	// Aggregated servers delegate all three to the cluster in front of them.
	Aggregated
	// SelfCertified servers are aggregated and keep their serving certificate in the cluster.
	SelfCertified
)

// mode is the part of the plan that depends on the Mode.
type mode interface {
	// builtIn returns the stored kinds that the mode adds to the definition's.
	builtIn() []define.Group
	// keepsNamespaces returns nil, or the reason why namespaces are not stored.
	keepsNamespaces() error
	// admissionPlugins returns the plugins that run without a declaration, unless disabled.
	admissionPlugins() (on, off []string)
	// check returns the first mistake in the user's API groups.
	check(*define.Server) error
	// complete fills in defaults and returns the first mistake.
	complete(*Plan) error
	// requirements returns the permissions that the server needs in its cluster, and the optional permissions that are
	// left out.
	requirements(*Plan) (required []requirements.Requirement, leftOut []string)
}

// modeOf chooses the mode and returns its part of the plan.
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

// standalone has no cluster in front. With fair set, it has flow schemas and priority levels.
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
				return fmt.Errorf("%s requires an aggregated server: add Options.Aggregated", field)
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

// controlPlane is standalone and serves the API of a whole cluster.
type controlPlane struct {
	standalone
	plane *define.Plane
}

func (m controlPlane) builtIn() []define.Group {
	return merge(m.standalone.builtIn(), m.plane.Groups())
}

// merge appends groups, and adds the kinds of a group that exists already to that group.
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

func (m controlPlane) admissionPlugins() (on, off []string) {
	return m.plane.AdmissionPlugins, m.plane.OffAdmissionPlugins
}

// aggregated has a cluster in front, in whose namespaces its objects are.
type aggregated struct{}

func (aggregated) builtIn() []define.Group { return nil }

func (aggregated) check(definition *define.Server) error { return define.CheckAggregated(definition) }

func (aggregated) keepsNamespaces() error {
	return errors.New("an aggregated server uses the namespaces of its cluster")
}

func (aggregated) complete(p *Plan) error {
	o := &p.Options
	if p.Definition.Plane != nil {
		return errors.New("Options.Aggregated and Server.ControlPlane exclude each other: a server with a control plane cannot be " +
			"aggregated; remove one of them")
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

// completeMode uses the certificate in the certificate directory, if there is one, and completes the options of the
// mode.
func (p *Plan) completeMode() error {
	o := &p.Options
	if o.TLSCertFile == "" && o.TLSPrivateKeyFile == "" && o.CertDir != "" {
		// Upstream's servers use these file names.
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
			"Options.SelfCertify.Workload require Options.SelfCertify.Enabled")
	case o.TLSCertFile != "" || o.TLSPrivateKeyFile != "":
		return errors.New("Options.SelfCertify.Enabled and Options.TLSCertFile exclude each other: set one of them")
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
			return errors.New("Options.SelfCertify.Enabled requires Options.SelfCertify.ServiceNamespace, because the server does not run " +
				"in a pod")
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
		return fmt.Errorf("Options.SelfCertify.Workload %q: must be deployments/NAME or statefulsets/NAME", s.Workload)
	}
	return nil
}

// Requirements returns the permissions that an aggregated server needs in its cluster, and descriptions of the
// optional permissions that are left out. Both are empty for a standalone server.
func (p *Plan) Requirements() (required []requirements.Requirement, leftOut []string) {
	return p.mode.requirements(p)
}

// KeepsObjects reports whether objects persist on this machine when the server stops.
func (p *Plan) KeepsObjects() bool {
	keeps := func(t driver.Traits) bool { return !t.Remote && !t.Ephemeral }
	return keeps(p.Options.Storage.Traits()) || slices.ContainsFunc(p.Storages, func(s *Storage) bool { return keeps(s.Traits()) })
}

// KeepsNothing reports whether the server needs no data directory: it has no certificate authority, and its objects
// and its certificate are stored elsewhere.
func (p *Plan) KeepsNothing() bool {
	o := &p.Options
	return o.Aggregated && !p.KeepsObjects() && (o.CertDir != "" || o.TLSCertFile != "" || o.SelfCertify.Enabled)
}
