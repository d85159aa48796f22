// Package plan resolves the effective configuration of a server, once. The operator's options take precedence over
// the developer's, and these over the defaults. The packages that serve, describe and maintain the server read the
// plan; none of them changes it.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/audit"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/store/driver"
)

// Plan is the effective configuration of a server. It must not be changed.
type Plan struct {
	// Definition is the user's definition, with the kinds that the mode adds.
	Definition *define.Server
	// ControlPlane opens the control plane of a server in the mode ControlPlane, with the operator's options.
	ControlPlane definition.ControlPlane
	// Mode is the source of authentication, authorization and namespaces.
	Mode Mode
	// Options have their defaults filled in.
	Options config.Options
	// Storages are the storages in use, the storage of the namespaces first. One storage may hold several
	// resources.
	Storages []*Storage
	// Resources are the stored resources, sorted by name.
	Resources []Resource
	// Controllers are the selected controllers that run in the server's process.
	Controllers []define.Controller
	// AdmissionPlugins are the enabled plugins of the definition.
	AdmissionPlugins []define.AdmissionPlugin
	// Console and SwaggerUI are the web pages.
	Console, SwaggerUI Page
	// UsersAwaited is set if the file Options.Login.UserFile may be missing at the start.
	UsersAwaited bool
	// QueryPrefix is the path prefix of the query API; empty if it is not served. QueryPrefixFrom is the source of
	// that decision.
	QueryPrefix     string
	QueryPrefixFrom Source

	mode       mode
	mediaTypes map[schema.GroupResource]string
}

// Storage is a storage with the resources that it holds.
type Storage struct {
	driver.Driver
	Resources []schema.GroupResource
	dataDir   string
	layout    []driver.Resource
}

// Where returns the storage's location, for messages and comparisons.
func (s *Storage) Where() string { return s.Location(s.dataDir) }

// Env returns the environment of the storage's driver. Maintenance tools set idle.
func (s *Storage) Env(logger *slog.Logger, idle bool) driver.Env {
	return driver.Env{DataDir: s.dataDir, Logger: logger, Resources: s.layout, Idle: idle}
}

// Resource is a stored resource: its storage and encoding, and the sources of these decisions.
type Resource struct {
	schema.GroupResource
	Storage *Storage
	// Prefix is the prefix of its objects' keys, without the trailing slash.
	Prefix string
	// StorageFrom and MediaTypeFrom are the sources of the decisions; Default if neither the developer nor the
	// operator has decided.
	StorageFrom   Source
	MediaType     string
	MediaTypeFrom Source
}

// Source is the source of a setting.
type Source struct {
	Level Level `json:"level"`
	// Setting is the deciding setting, such as StoredIn of kind Lease; empty for a default.
	Setting string `json:"setting,omitempty"`
}

// Level is the authority that decides a setting. A higher level wins.
type Level int

// The levels.
const (
	Default Level = iota
	Developer
	Operator
)

func (l Level) String() string { return [...]string{"default", "developer", "operator"}[l] }

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Resolve fills in defaults. It returns every mistake in the choice of storages and media types, or else the first
// other mistake. It opens nothing. If options.Storage is nil, the fallback is used; without either, the missing
// storage is a mistake.
func Resolve(d *definition.Definition, options config.Options, fallback driver.Driver) (*Plan, error) {
	d, err := withPlane(d, options.ControlPlane)
	if err != nil {
		return nil, err
	}
	if err := checkFrontProxy(d.Server, &options); err != nil {
		return nil, err
	}
	p := &Plan{Options: options, ControlPlane: d.ControlPlane}
	p.Mode, p.mode = modeOf(d.Server, &options)
	if err := p.define(d.Server); err != nil {
		return nil, err
	}
	place := func() error { return p.place(fallback) }
	for _, step := range []func() error{place, p.encode, p.completeMode, p.completeQuery, p.checkHistory, p.completeRest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// define adds the kinds of the mode and the controllers of a control plane to the user's definition.
func (p *Plan) define(definition *define.Server) (err error) {
	if err := p.mode.check(definition); err != nil {
		return err
	}
	p.Definition = definition
	if groups := p.mode.builtIn(); len(groups) > 0 {
		p.Definition, err = definition.With(groups...)
	}
	if plane := definition.Plane; err == nil && plane != nil {
		p.Definition = p.Definition.WithControllers(plane.Controllers...)
	}
	return err
}

// Resource returns the stored resource with the given name; nil if there is none.
func (p *Plan) Resource(resource schema.GroupResource) *Resource {
	for i := range p.Resources {
		if p.Resources[i].GroupResource == resource {
			return &p.Resources[i]
		}
	}
	return nil
}

// Storage returns the storage with the given name; nil if it is not in use.
func (p *Plan) Storage(name string) *Storage {
	for _, s := range p.Storages {
		if s.Name() == name {
			return s
		}
	}
	return nil
}

// MediaType returns the media type in which the objects of a resource are stored. For virtual kinds it is the media
// type of the mirror.
func (p *Plan) MediaType(resource schema.GroupResource) string { return p.mediaTypes[resource] }

// Names lists the stored resources, for messages.
func (p *Plan) Names() string {
	var all []string
	for _, r := range p.Resources {
		all = append(all, r.String())
	}
	return strings.Join(all, ", ")
}

// Everything returns the plan of a server that stores all its resources, including namespaces, in Options.Storage.
// It ignores StoredIn of kinds and Options.StorageOf. The plan is for tools that copy from and to that storage, and
// for work that does not depend on storages. Everything does not validate the driver, and ignores the options of
// the mode.
func Everything(definition *define.Server, options config.Options) (*Plan, error) {
	options.StorageOf, options.Aggregated = nil, false
	options.PriorityAndFairness = new(!hasOwnLevels(definition))
	p := &Plan{Options: options}
	p.Mode, p.mode = modeOf(definition, &options)
	if err := p.define(definition); err != nil {
		return nil, err
	}
	at := map[schema.GroupResource]choice{coreapi.Resource: {Driver: options.Storage}}
	for _, k := range p.Definition.Kinds() {
		if k.IsStored() {
			at[k.Primary().GroupResource()] = choice{Driver: options.Storage}
		}
	}
	p.gather(at)
	for _, step := range []func() error{p.encode, p.completeQuery, p.checkHistory, p.completeRest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// choice is the driver that stores a resource, and the source of that decision.
type choice struct {
	driver.Driver
	from   Source
	single bool // chosen for this resource, not for all
}

// errNoStorage is for programs that embed a server. None of the storages is a safe default there: one of them
// loses all objects at the end, and the others would have to be linked into each program.
var errNoStorage = errors.New("Options.Storage is missing: use a storage such as embedded.Dir(\"\") of store/embedded, which stores " +
	"objects in Options.DataDir, or memory.Storage() of store/memory, which loses them when the server stops")

// place chooses the storage of each resource. The error lists every mistake in these choices.
func (p *Plan) place(fallback driver.Driver) error {
	o := &p.Options
	main := choice{Driver: fallback}
	if o.Storage != nil {
		main = choice{Driver: o.Storage, from: Source{Operator, "Options.Storage=" + o.Storage.Name()}}
	}
	if main.Driver == nil {
		return errNoStorage
	}
	o.Storage = main.Driver
	if err := o.Storage.Validate(o.DataDir); err != nil {
		return err
	}
	given := []driver.Driver{o.Storage}
	given = append(given, o.Drivers...)
	for _, resource := range sorted(o.StorageOf) {
		given = append(given, o.StorageOf[resource])
	}
	at := map[schema.GroupResource]choice{}
	notKept := p.mode.keepsNamespaces()
	if notKept == nil {
		at[coreapi.Resource] = main
	}
	for _, k := range p.Definition.Kinds() {
		if k.AliasOf != nil || !k.IsStored() {
			continue
		}
		at[k.GroupResource()] = main
		if k.Storage != nil {
			d := k.Storage
			if i := slices.IndexFunc(given, func(g driver.Driver) bool { return g.Name() == d.Name() }); i >= 0 {
				d = given[i]
			}
			at[k.GroupResource()] = choice{d, Source{Developer, "StoredIn of kind " + k.Name}, true}
		}
	}
	var errs []error
	for _, resource := range sorted(o.StorageOf) {
		setting := fmt.Sprintf("Options.StorageOf %s", resource)
		if owner := p.Definition.Owner(resource); owner != resource {
			errs = append(errs, fmt.Errorf("%s: the resource shares its objects with %s: use that resource", setting, owner))
			continue
		}
		if resource == coreapi.Resource && notKept != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, notKept))
			continue
		}
		if _, ok := at[resource]; !ok {
			errs = append(errs, fmt.Errorf("%s: unknown resource; resources of this server: %s", setting, list(at)))
			continue
		}
		d := o.StorageOf[resource]
		at[resource] = choice{d, Source{Operator, setting + "=" + d.Name()}, true}
	}
	for _, resource := range sorted(at) {
		c := at[resource]
		if !c.single {
			continue // the server's own storage has been checked
		}
		if err := c.Validate(o.DataDir); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.from.Setting, err))
		}
		for _, other := range sorted(at) {
			if d := at[other]; d.Name() == c.Name() && d.Location(o.DataDir) != c.Location(o.DataDir) {
				errs = append(
					errs,
					fmt.Errorf("%s: another storage %s, at %s, is used for %s", c.from.Setting, c.Name(), d.Location(o.DataDir), other),
				)
				break
			}
		}
	}
	errs = append(errs, checkNamespaces(p.Definition, at))
	for _, d := range o.Drivers {
		if !slices.ContainsFunc(slices.Collect(maps.Values(at)), func(c choice) bool { return c.Name() == d.Name() }) {
			errs = append(
				errs,
				fmt.Errorf("Options.Drivers %s has no effect, because no resource uses %[1]s: the storage is %s", d.Name(), o.Storage.Name()),
			)
		}
	}
	p.gather(at)
	return errors.Join(errs...)
}

// core stands for the core group, whose name is empty, where a non-empty name is needed.
const core = "core"

// gather groups the resources by storage.
func (p *Plan) gather(at map[schema.GroupResource]choice) {
	in := func(resource schema.GroupResource) {
		c, ok := at[resource]
		if !ok {
			return
		}
		s := p.Storage(c.Name())
		if s == nil {
			s = &Storage{Driver: c.Driver, dataDir: p.Options.DataDir}
			p.Storages = append(p.Storages, s)
		}
		if !slices.Contains(s.Resources, resource) {
			s.Resources = append(s.Resources, resource)
			p.Resources = append(
				p.Resources,
				Resource{GroupResource: resource, Storage: s, Prefix: registry.KeyPrefix(resource), StorageFrom: c.from},
			)
		}
	}
	in(coreapi.Resource) // its storage comes first
	for _, resource := range sorted(at) {
		in(resource)
	}
	slices.SortFunc(p.Resources, func(a, b Resource) int { return strings.Compare(a.String(), b.String()) })
	for _, s := range p.Storages {
		slices.SortFunc(s.Resources, compare)
		for _, resource := range s.Resources {
			if resource == coreapi.Resource {
				s.layout = append(
					s.layout,
					driver.Resource{Group: core, Resource: resource.Resource, Prefix: p.Resource(resource).Prefix, Status: true},
				)
			}
		}
	}
	for _, k := range p.Definition.Kinds() {
		if k.AliasOf != nil || !k.IsStored() {
			continue
		}
		r := p.Resource(k.GroupResource())
		r.Prefix = registry.KeyPrefix(k.StoredUnder)
		r.Storage.layout = append(r.Storage.layout, driver.Resource{
			Group: cmp.Or(k.StoredUnder.Group, core), Resource: k.StoredUnder.Resource, Prefix: r.Prefix,
			Namespaced: !k.ClusterScoped, Status: k.Status,
		})
	}
}

// checkNamespaces rejects objects that outlive their namespaces: after a restart, they could no longer be listed or
// deleted by namespace.
func checkNamespaces(definition *define.Server, at map[schema.GroupResource]choice) error {
	namespaces, ok := at[coreapi.Resource]
	if !ok || !namespaces.Traits().Ephemeral {
		return nil
	}
	for _, k := range definition.Kinds() {
		if !k.IsStored() || k.ClusterScoped {
			continue
		}
		if kept := at[k.Primary().GroupResource()]; !kept.Traits().Ephemeral {
			return fmt.Errorf(
				"%s are stored in %s, but their namespaces in %s, which loses them on a restart: add Options.StorageOf namespaces=%[2]s",
				k.GroupResource(),
				kept.Name(),
				namespaces.Name(),
			)
		}
	}
	return nil
}

// encode chooses the media type of each stored resource. The error lists every mistake in these choices. The
// default is JSON for all resources: nearly all clients request it, and the server then copies the stored bytes
// into the response.
func (p *Plan) encode() error {
	p.mediaTypes = map[schema.GroupResource]string{}
	types := map[schema.GroupResource]reflect.Type{}
	if r := p.Resource(coreapi.Resource); r != nil {
		types[coreapi.Resource] = reflect.TypeFor[corev1.Namespace]()
		r.MediaType = runtime.ContentTypeJSON
	}
	for _, k := range p.Definition.Kinds() {
		if k.AliasOf != nil || k.CustomStorage != nil {
			continue
		}
		t := k.Stored().Type
		if k.Source != nil { // it has a mirror in memory
			p.mediaTypes[k.GroupResource()] = runtime.ContentTypeJSON
			continue
		}
		r := p.Resource(k.GroupResource())
		types[k.GroupResource()] = t
		r.MediaType = runtime.ContentTypeJSON
		if k.StoredMediaType != "" {
			r.MediaType = k.StoredMediaType
			r.MediaTypeFrom = Source{Developer, fmt.Sprintf("StoredMediaType(%q) of kind %s", k.StoredMediaType, k.Name)}
		}
	}
	var errs []error
	for _, resource := range sorted(p.Options.StorageMediaTypeOf) {
		mediaType := p.Options.StorageMediaTypeOf[resource]
		setting := fmt.Sprintf("Options.StorageMediaTypeOf %s=%s", resource, mediaType)
		if owner := p.Definition.Owner(resource); owner != resource {
			errs = append(errs, fmt.Errorf("%s: the resource shares its objects with %s: use that resource", setting, owner))
			continue
		}
		r := p.Resource(resource)
		if r == nil {
			errs = append(errs, fmt.Errorf("%s: the server does not store this resource; stored resources: %s", setting, p.Names()))
			continue
		}
		if err := define.CheckStoredMediaType(mediaType, types[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			continue
		}
		r.MediaType, r.MediaTypeFrom = mediaType, Source{Operator, setting}
	}
	for _, r := range p.Resources {
		p.mediaTypes[r.GroupResource] = r.MediaType
		if r.Storage.Traits().TextOnly && r.MediaType != runtime.ContentTypeJSON {
			errs = append(errs, fmt.Errorf("%s: %s are stored in %s, whose YAML files users read and edit, so the media type must be %s: "+
				"add Options.StorageMediaTypeOf %[2]s=%[4]s", r.MediaTypeFrom.Setting, r, r.Storage.Name(), runtime.ContentTypeJSON))
		}
	}
	return errors.Join(errs...)
}

// completeRest fills in the options that no other step completes, and returns the first mistake.
func (p *Plan) completeRest() error {
	o := &p.Options
	for _, address := range []struct{ field, value string }{{"Options.Listen", o.Listen}, {"Options.ListenInsecure", o.ListenInsecure}} {
		if err := checkAddress(address.value); err != nil {
			return fmt.Errorf("%s %q: %w", address.field, address.value, err)
		}
	}
	if err := completeServing(&o.Serving); err != nil {
		return err
	}
	if err := p.completeConsole(); err != nil {
		return err
	}
	if o.Controllers == nil {
		o.Controllers = []string{controllers.All}
	}
	var err error
	if p.Controllers, err = controllers.Select(p.Definition.Controllers, o.Controllers); err != nil {
		return fmt.Errorf("Options.Controllers: %w", err)
	}
	p.dropOffControllers()
	if o.EncryptionConfigReload && o.EncryptionConfigFile == "" {
		return errors.New("an automatic reload requires Options.EncryptionConfigFile")
	}
	if err := audit.Complete(&o.Audit); err != nil {
		return err
	}
	if err := audit.CompleteAccessLog(&o.AccessLog); err != nil {
		return err
	}
	if err := p.completeAdmission(); err != nil {
		return err
	}
	for _, timeout := range []struct {
		field string
		value time.Duration
	}{{"Options.RequestTimeout", o.RequestTimeout}, {"Options.ShutdownTimeout", o.ShutdownTimeout},
		{"Options.ShutdownDelay", o.ShutdownDelay}} {
		if timeout.value < 0 {
			return fmt.Errorf("%s %v is negative", timeout.field, timeout.value)
		}
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = time.Minute
	}
	if o.ShutdownTimeout == 0 {
		o.ShutdownTimeout = 10 * time.Second
	}
	return nil
}

func checkAddress(address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("not an IP address and a port, such as 127.0.0.1:8443")
	}
	if host != "" && net.ParseIP(host) == nil {
		return fmt.Errorf("bind address %q is not an IP address", host)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || strings.Trim(port, "0123456789") != "" {
		return fmt.Errorf("port %s is not between 0 and 65535", port)
	}
	return nil
}

// Path returns the path of a name in the data directory; empty if there is no data directory.
func (p *Plan) Path(name string) string {
	if p.Options.DataDir == "" {
		return ""
	}
	return filepath.Join(p.Options.DataDir, name)
}

// CertDir returns the directory of the certificates that the server generates; empty if it has none.
func (p *Plan) CertDir() string {
	if p.Options.CertDir != "" {
		return p.Options.CertDir
	}
	return p.Path("cert")
}

func compare(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }

func sorted[V any](m map[schema.GroupResource]V) []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(m), compare)
}

func list(at map[schema.GroupResource]choice) string {
	var all []string
	for _, resource := range sorted(at) {
		all = append(all, resource.String())
	}
	return strings.Join(all, ", ")
}
