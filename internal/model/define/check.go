package define

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/base/ordered"
)

// Check completes the definition and returns all mistakes in it, joined into one error. It may be called repeatedly.
func Check(s *Server) error {
	c := checker{
		resources: map[string]string{},
		kinds:     map[string]string{},
		places:    map[schema.GroupResource]string{},
		options:   map[schema.GroupVersionKind]reflect.Type{},
	}
	if msgs := validation.IsDNS1123Label(s.Name); len(msgs) > 0 {
		c.errorf("server", "Name %q: %s", s.Name, strings.Join(msgs, "; "))
	}
	if len(s.Groups) == 0 && s.Plane == nil {
		c.errorf("server", "no groups: a server needs at least one annex.Group with a kind; annex create api writes both")
	}
	if s.Plane != nil && s.Plane.Mistake != nil {
		c.errorf("control plane", "%v", s.Plane.Mistake)
	}
	c.ownVersion(s)
	c.controllers(s.Controllers)
	c.admissionPlugins(s.AdmissionPlugins)
	c.handlers(s.Handlers)
	c.console(s.Console)
	if err := CheckQueryPrefix(s.QueryPrefix()); err != nil {
		c.errorf("Server.Query", "prefix %v", err)
	}
	seen := map[string]bool{}
	for _, g := range s.Groups {
		where := fmt.Sprintf("group %q", g.Name)
		if seen[g.Name] {
			c.errorf(where, "declared twice: put all kinds of a group into one annex.Group")
		}
		seen[g.Name] = true
		c.group(where, g)
	}
	// Kinds in other groups need their primary kind, which has been checked by now.
	for _, g := range s.Groups {
		for _, k := range g.Kinds {
			if k != nil && k.AliasOf != nil {
				c.shared(k)
			}
		}
	}
	c.operations(s)
	for _, k := range s.Kinds() {
		if k != nil && k.AliasOf == nil {
			c.storedAs(k)
		}
	}
	return errors.Join(c.errs...)
}

func (c *checker) controllers(all []Controller) {
	seen := map[string]bool{}
	for i, controller := range all {
		where := fmt.Sprintf("controller %d", i)
		if controller.Name != "" {
			where = fmt.Sprintf("controller %q", controller.Name)
		}
		if msgs := validation.IsDNS1123Label(controller.Name); len(msgs) > 0 {
			c.errorf(where, "name: %s", strings.Join(msgs, "; "))
		} else if controller.Name == EveryController {
			c.errorf(where, "name: this name selects all controllers")
		} else if seen[controller.Name] {
			c.errorf(where, "declared twice")
		}
		seen[controller.Name] = true
		if controller.Run == nil {
			c.errorf(where, "no Run")
		}
	}
}

// pluginName matches the names of upstream's admission plugins.
var pluginName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// The names of the server's own admission plugins: Hooks runs the hooks of kinds, Cluster rejects writes while a
// cluster is unavailable, and Rights prevents callers from granting rights that they do not have.
const (
	HooksPlugin   = "Hooks"
	ClusterPlugin = "Cluster"
	RightsPlugin  = "Rights"
)

func (c *checker) admissionPlugins(all []AdmissionPlugin) {
	seen := map[string]bool{}
	for i, p := range all {
		where := fmt.Sprintf("admission plugin %d", i)
		if p.Name != "" {
			where = fmt.Sprintf("admission plugin %q", p.Name)
		}
		switch {
		case !pluginName.MatchString(p.Name):
			c.errorf(where, "name: must begin with a capital letter and have only letters and digits, such as ImagePolicy")
		case slices.Contains([]string{HooksPlugin, ClusterPlugin, RightsPlugin}, p.Name):
			c.errorf(where, "name: a built-in plugin has the same name")
		case seen[p.Name]:
			c.errorf(where, "declared twice")
		}
		seen[p.Name] = true
		if p.New == nil {
			c.errorf(where, "set Plugin or New, and not both")
		}
	}
}

// ownPaths must not be used by handlers beside the API.
var ownPaths = []string{
	"/.well-known",
	"/api",
	"/apis",
	"/debug",
	"/healthz",
	"/livez",
	"/metrics",
	"/openapi",
	"/openid",
	"/readyz",
	"/storage",
	"/version",
}

func (c *checker) handlers(all []Handler) {
	seen, documents := map[string]bool{}, map[string]string{}
	for i, h := range all {
		where := fmt.Sprintf("handler %d", i)
		if h.Path != "" {
			where = fmt.Sprintf("handler %q", h.Path)
		}
		plain := strings.TrimSuffix(h.Path, "/")
		switch {
		case !strings.HasPrefix(h.Path, "/") || path.Clean(h.Path) != plain || strings.ContainsAny(h.Path, "*%?#{} "):
			c.errorf(where, "path: must be a path such as /menu, or /menu/ for all paths with this prefix")
		case slices.ContainsFunc(ownPaths, func(own string) bool { return plain == own || strings.HasPrefix(plain, own+"/") }):
			c.errorf(where, "path: reserved by the server, like %s", strings.Join(ownPaths, ", "))
		case seen[h.Path]:
			c.errorf(where, "declared twice")
		}
		seen[h.Path] = true
		if h.OpenAPI != nil {
			if other := documents[h.Document()]; other != "" {
				c.errorf(where, "OpenAPI: handler %q has the document of these paths", other)
			}
			documents[h.Document()] = h.Path
		}
		if h.New == nil {
			c.errorf(where, "set Handler or New, and not both")
		}
	}
}

type checker struct {
	errs      []error
	resources map[string]string
	kinds     map[string]string
	places    map[schema.GroupResource]string
	options   map[schema.GroupVersionKind]reflect.Type // options that no package registers
}

func (c *checker) errorf(where, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
}

// ownGroups are the groups that a server serves completely by itself.
var ownGroups = []string{authenticationv1.GroupName, authorizationv1.GroupName, rbacv1.GroupName}

// CheckAggregated returns an error for the first group that an aggregated server cannot serve, because the
// kube-apiserver serves it, may serve it in the future, or does not delegate it to other servers.
func CheckAggregated(s *Server) error {
	for _, g := range s.Groups {
		switch {
		case g.Name == "":
			return errors.New("an aggregated server cannot serve the core group, which the cluster serves: serve the kinds in a " +
				"standalone server")
		case !strings.Contains(g.Name, "."):
			return fmt.Errorf(
				"group %q: an aggregated server can only serve groups with a domain, such as %[1]s.example.com; groups without one belong "+
					"to the cluster",
				g.Name,
			)
		case reserved(g.Name) && !definedElsewhere(g):
			return fmt.Errorf("group %q: an aggregated server cannot serve groups below *.k8s.io, which are reserved for Kubernetes", g.Name)
		}
	}
	return nil
}

func reserved(group string) bool {
	return group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") && !strings.HasSuffix(group, ".x-k8s.io")
}

// definedElsewhere reports whether the group belongs to a project beside Kubernetes, such as
// gateway.networking.k8s.io, whose kinds are custom resources.
func definedElsewhere(g Group) bool {
	if strings.Count(g.Name, ".") < 3 || strings.HasSuffix(g.Name, ".apiserver.k8s.io") {
		return false
	}
	return !slices.ContainsFunc(g.Kinds, func(k *Kind) bool {
		return k == nil || k.Hub().Facts == nil || k.Hub().Facts().CustomResources == nil
	})
}

func (c *checker) group(where string, g Group) {
	builtIn := !slices.ContainsFunc(g.Kinds, func(k *Kind) bool { return k == nil || !k.BuiltIn })
	switch msgs := validation.IsDNS1123Subdomain(g.Name); {
	case g.Name == "": // the core group
	case len(msgs) > 0:
		c.errorf(where, "%s", strings.Join(msgs, "; "))
	case g.Name == "core":
		c.errorf(where, "this name means the group without a name: use an empty name")
	case slices.Contains(ownGroups, g.Name) && !builtIn:
		c.errorf(where, "reserved: every server serves this group")
	}
	if len(g.Kinds) == 0 {
		c.errorf(where, "no kinds")
	}
	for i, k := range g.Kinds {
		if k == nil {
			c.errorf(where, "kind %d is nil", i)
			continue
		}
		k.Group = g.Name
		if k.AliasOf == nil {
			c.kind(k)
		}
	}
}

func (c *checker) kind(k *Kind) {
	hub := k.Hub()
	k.Name = hub.Type.Name()
	where := fmt.Sprintf("kind %s (%s)", k.Name, k.GroupResource())
	c.markers(where, k)
	c.names(where, k)
	c.structure(where, hub.Type)
	c.versions(where, k)
	if !slices.ContainsFunc(k.Versions, func(v *Version) bool { return !v.Unserved }) {
		c.errorf(where, "no version is served")
	}
	if k.Group == "" {
		c.core(where, k)
	}
	c.place(where, k)
	c.capabilities(where, k)
	c.paths(where, k)
	c.subresources(where, k)
	c.validationOptions(where, k)
	c.grants(where, k)
	if slices.ContainsFunc(k.Admissions, func(make AdmissionConstructor) bool { return make == nil }) {
		c.errorf(where, "Admit or Mutate: the function is nil")
	}
	if slices.ContainsFunc(k.ConnectAdmissions, func(make AdmissionConstructor) bool { return make == nil }) {
		c.errorf(where, "AdmitConnect: the function is nil")
	}
	if len(k.ConnectAdmissions) > 0 &&
		!slices.ContainsFunc(k.CustomSubresources, func(s *Subresource) bool { return s != nil && s.Connects() }) {
		c.errorf(where, "AdmitConnect: the kind has no subresource that connects")
	}
	for _, hooks := range []struct {
		name, meanwhile string
		makes           []func(any) (BesideAdmission, error)
	}{{"AdmitCreate", "create", k.CreateAdmissions}, {"AdmitUpdate", "update", k.UpdateAdmissions}} {
		if slices.ContainsFunc(hooks.makes, func(make func(any) (BesideAdmission, error)) bool { return make == nil }) {
			c.errorf(where, "%s: the function is nil", hooks.name)
		}
		if len(hooks.makes) > 0 && (k.Source != nil || k.CustomStorage != nil) {
			c.errorf(where, "%s: the server does not store the objects, so other writers may %s objects at the "+
				"same time", hooks.name, hooks.meanwhile)
		}
	}
	switch {
	case k.Source != nil && k.CustomStorage != nil:
		c.errorf(where, "Virtual and CustomStorage exclude each other")
	case k.Source != nil:
		c.source(where, k)
	case k.CustomStorage != nil:
		c.ownStorage(where, k)
	}
}

// validationOptions reports options that no tag uses. Facts that an earlier release generated do not list the
// options.
func (c *checker) validationOptions(where string, k *Kind) {
	var named []string
	for _, facts := range k.Facts() {
		named = append(named, facts.ValidationOptions...)
	}
	if len(named) == 0 {
		return
	}
	slices.Sort(named)
	for _, name := range slices.Sorted(maps.Keys(k.ValidationOptions)) {
		if !slices.Contains(named, name) {
			c.errorf(where, "ValidationOptions: no tag names the option %q; the tags of its packages name %s",
				name, strings.Join(slices.Compact(named), ", "))
		}
	}
}

// core checks a kind of the core group, which has a path of its own.
func (c *checker) core(where string, k *Kind) {
	if k.Resource == "namespaces" || k.Name == "Namespace" {
		c.errorf(where, "every server has namespaces already")
	}
	for _, v := range k.Versions {
		if !v.Unserved && v.GroupVersion.Version != "v1" {
			c.errorf(where, "the core group is served in version v1 only, not in %s", v.GroupVersion.Version)
		}
	}
}

// shared checks a kind that shares the objects of another, which has been checked.
func (c *checker) shared(k *Kind) {
	primary := k.AliasOf
	where := fmt.Sprintf("kind %s (%s), AlsoServedAs(%q, %q)", primary.Name, primary.GroupResource(), k.Group, k.Resource)
	if len(k.Versions) == 0 {
		c.errorf(where, "no versions: name at least one, with Version or SameVersion")
		return
	}
	k.Name = k.Versions[0].Type.Name()
	for _, other := range append([]*Kind{primary}, primary.Aliases...) {
		if other != k && other.Group == k.Group {
			c.errorf(
				where,
				"the group already serves these objects as %s: choose another group, because a Go type can have only one kind in a group",
				other.Resource,
			)
			return
		}
	}
	c.names(where, k)
	for _, v := range k.Versions {
		if v.SameType {
			c.same(where, k, v)
		}
	}
	c.versions(where, k)
	if k.Group == "" {
		c.core(where, k)
	}
	sharedMarkers(k)
	c.paths(where, k)
}

// ownVersion checks that /version can show the program's version.
func (c *checker) ownVersion(s *Server) {
	if !s.OwnVersion {
		return
	}
	if _, err := utilversion.ParseSemantic(s.Version); err != nil || !strings.HasPrefix(s.Version, "v") {
		c.errorf("server", "OwnVersion: Version %q is not a semantic version such as v1.2.0", s.Version)
	}
	if s.Plane != nil {
		c.errorf("server", "OwnVersion and ControlPlane exclude each other: clients of a control plane need its Kubernetes release")
	}
}

// same completes a version declared with SameVersion: it has the Go type and the conversions of a version of the
// primary kind.
func (c *checker) same(where string, k *Kind, v *Version) {
	i := slices.IndexFunc(k.AliasOf.Versions, func(other *Version) bool { return other.Type == v.Type })
	if i < 0 {
		c.errorf(where, "SameVersion(%q): Go type %s belongs to no version of the kind", v.GroupVersion.Version, v.Type)
		return
	}
	if msgs := validation.IsDNS1035Label(v.GroupVersion.Version); len(msgs) > 0 {
		c.errorf(where, "SameVersion(%q): %s", v.GroupVersion.Version, strings.Join(msgs, "; "))
		return
	}
	if v.Default != nil {
		c.errorf(where, "SameVersion(%q): defaults belong to the Go type: declare Default with the kind's own version", v.GroupVersion.Version)
	}
	original := k.AliasOf.Versions[i]
	if original.Facts == nil {
		return // has been reported
	}
	v.GroupVersion.Group = k.Group
	v.ToHub, v.FromHub = original.ToHub, original.FromHub
	gv := v.GroupVersion
	v.Facts = func() api.Facts {
		facts := original.Facts()
		facts.GroupVersion = gv
		facts.AddToScheme = func(scheme *runtime.Scheme) error {
			scheme.AddKnownTypes(gv, original.New(), original.NewList())
			metav1.AddToGroupVersion(scheme, gv)
			return nil
		}
		return facts
	}
}

// place checks the resource under which the kind's objects are stored.
func (c *checker) place(where string, k *Kind) {
	if k.StoredUnder.Empty() {
		k.StoredUnder = k.GroupResource()
	}
	if msgs := append(
		validation.IsDNS1123Subdomain(k.StoredUnder.Group),
		validation.IsDNS1035Label(k.StoredUnder.Resource)...); len(msgs) > 0 &&
		k.StoredUnder != k.GroupResource() {
		c.errorf(where, "StoredUnder(%q, %q): %s", k.StoredUnder.Group, k.StoredUnder.Resource, strings.Join(msgs, "; "))
	}
	if other, ok := c.places[k.StoredUnder]; ok && k.StoredUnder != k.GroupResource() {
		c.errorf(where, "StoredUnder(%q, %q): the objects of kind %s are stored there", k.StoredUnder.Group, k.StoredUnder.Resource, other)
	} else if ok {
		c.errorf(where, "its objects would be stored with those of kind %s, which is StoredUnder %s", other, k.StoredUnder)
	}
	c.places[k.StoredUnder] = k.Name
}

// storedAs checks how the kind's objects are encoded. It needs the versions of all groups.
func (c *checker) storedAs(k *Kind) {
	where := fmt.Sprintf("kind %s (%s)", k.Name, k.GroupResource())
	if k.StoredAs == "" {
		k.StoredAs = k.Hub().GroupVersion.Version
	}
	if k.version(k.StoredAs) == nil {
		c.errorf(where, "StoredAs(%q): unknown version; declared versions: %s", k.StoredAs, strings.Join(k.VersionNames(), ", "))
		return
	}
	if k.StoredMediaType == "" {
		return
	}
	if err := CheckStoredMediaType(k.StoredMediaType, k.Stored().Type); err != nil {
		c.errorf(where, "StoredMediaType(%q): %v", k.StoredMediaType, err)
	}
}

// CheckStoredMediaType reports an error if objects of a Go type cannot be stored in a media type.
func CheckStoredMediaType(mediaType string, t reflect.Type) error {
	switch mediaType {
	case runtime.ContentTypeJSON:
		return nil
	case runtime.ContentTypeProtobuf:
		if !IsProtobuf(t) {
			return fmt.Errorf("the Go type %s of stored objects has no protobuf methods: generate them with annex generate", t)
		}
		return nil
	}
	return fmt.Errorf("choose %s or %s", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf)
}

// names checks the names of the kind, and that they are unique.
func (c *checker) names(where string, k *Kind) {
	if other, ok := c.resources[k.GroupResource().String()]; ok {
		c.errorf(where, "duplicate resource: %s is served by kind %s already", k.GroupResource(), other)
	}
	c.resources[k.GroupResource().String()] = k.Name
	if _, ok := c.kinds[k.GroupKind().String()]; ok {
		c.errorf(where, "duplicate kind: declare its versions in one KindOf, with Versions")
	}
	c.kinds[k.GroupKind().String()] = k.Resource

	if msgs := validation.IsDNS1035Label(k.Resource); len(msgs) > 0 {
		c.errorf(where, "resource %q: %s", k.Resource, strings.Join(msgs, "; "))
	}
	if k.Singular == "" {
		k.Singular = strings.ToLower(k.Name)
	}
	for _, name := range append([]string{k.Singular}, append(k.ShortNames, k.Categories...)...) {
		if msgs := validation.IsDNS1035Label(name); len(msgs) > 0 {
			c.errorf(where, "name %q: %s", name, strings.Join(msgs, "; "))
		}
	}
}

// grants checks the grants to roles.
func (c *checker) grants(where string, k *Kind) {
	for _, g := range k.Grants {
		what := fmt.Sprintf("Role(%q, %q)", g.Role, g.Subresource)
		if msgs := validation.IsDNS1123Subdomain(g.Role); len(msgs) > 0 {
			c.errorf(where, "%s: role: %s", what, strings.Join(msgs, "; "))
		}
		if g.Subresource != "" && k.CustomStorage == nil && !slices.Contains(k.Subresources(), g.Subresource) {
			c.errorf(where, "%s: unknown subresource; subresources of the kind: %s", what, strings.Join(k.Subresources(), ", "))
		}
		if len(g.Verbs) == 0 || slices.Contains(g.Verbs, "") {
			c.errorf(where, "%s: no verbs, or an empty verb: use verbs such as get", what)
		}
	}
}

// source checks that a virtual kind has the required functions and no unsupported options.
func (c *checker) source(where string, k *Kind) {
	s := k.Source
	if s.Get == nil || s.List == nil {
		c.errorf(where, "Virtual: a Source must have Get and List")
	}
	if s.Poll < 0 || s.Poll > 0 && s.Poll < time.Millisecond {
		c.errorf(where, "Virtual: Poll must be at least a millisecond, not %s", s.Poll)
	}
	if k.Grace != nil {
		c.errorf(where, "GracePeriod: the objects of a virtual kind are deleted at once")
	}
	if k.Storage != nil {
		c.errorf(where, "StoredIn(%s): the objects of a virtual kind are not stored", k.Storage.Name())
	}
	if k.StoredMediaType != "" {
		c.errorf(where, "StoredMediaType(%q): the objects of a virtual kind are not stored", k.StoredMediaType)
	}
	if k.StoredAs != "" {
		c.errorf(where, "StoredAs(%q): the objects of a virtual kind are not stored", k.StoredAs)
	}
	if k.StoredUnder != k.GroupResource() {
		c.errorf(where, "StoredUnder(%q, %q): the objects of a virtual kind are not stored", k.StoredUnder.Group, k.StoredUnder.Resource)
	}
	if k.Scale != nil && s.Update == nil {
		c.errorf(where, "Scale: the source has no Update")
	}
	for _, hook := range []struct {
		name   string
		set    bool
		needed string
		has    bool
	}{
		{"PrepareForCreate", k.PrepareForCreate != nil, "Create", s.Create != nil},
		{"PrepareForUpdate", k.PrepareForUpdate != nil, "Update", s.Update != nil},
		{"Canonicalize", k.Canonicalize != nil, "Create or Update", s.Create != nil || s.Update != nil},
		{"AfterCreate", k.AfterCreate != nil, "Create", s.Create != nil},
		{"AfterUpdate", k.AfterUpdate != nil, "Update", s.Update != nil},
		{"AfterDelete", k.AfterDelete != nil, "Delete", s.Delete != nil},
		{"ValidateUpdate", k.ValidateUpdate != nil, "Update", s.Update != nil},
		{"ValidateStatus", k.ValidateStatus != nil, "Update", s.Update != nil},
		{"Validate", k.Validate != nil, "Create or Update", s.Create != nil || s.Update != nil},
		{"Warn", k.Warn != nil, "Create or Update", s.Create != nil || s.Update != nil},
	} {
		if hook.set && !hook.has {
			c.errorf(where, "%s never runs: the source has no %s", hook.name, hook.needed)
		}
	}
}

// ownStorage rejects hooks that a custom storage has to implement itself.
func (c *checker) ownStorage(where string, k *Kind) {
	for _, hook := range []struct {
		name string
		set  bool
	}{
		{"PrepareForCreate", k.PrepareForCreate != nil},
		{"PrepareForUpdate", k.PrepareForUpdate != nil},
		{"Validate", k.Validate != nil},
		{"ValidateUpdate", k.ValidateUpdate != nil},
		{"ValidateStatus", k.ValidateStatus != nil},
		{"PrepareForStatus", k.PrepareForStatus != nil},
		{"Canonicalize", k.Canonicalize != nil},
		{"AfterCreate", k.AfterCreate != nil},
		{"AfterUpdate", k.AfterUpdate != nil},
		{"AfterDelete", k.AfterDelete != nil},
		{"ValidateCreate", k.ValidateCreate != nil},
		{"ValidateName", k.ValidateName != nil},
		{"UnconditionalUpdate", k.Unconditional},
		{"CreateOnUpdate", k.CreateOnUpdate},
		{"Warn", k.Warn != nil},
		{"Scale", k.Scale != nil},
		{"GracePeriod", k.Grace != nil},
		{"StoredIn", k.Storage != nil},
		{"StoredMediaType", k.StoredMediaType != ""},
		{"StoredUnder", k.StoredUnder != k.GroupResource()},
		{"AlsoServedAs", len(k.Aliases) > 0},
		{"IndexFields", len(k.IndexFields) > 0},
		{"IndexLabels", len(k.IndexLabels) > 0},
	} {
		if hook.set {
			c.errorf(where, "%s has no effect: a custom storage handles this itself", hook.name)
		}
	}
	for _, v := range k.Versions {
		if v.Validate != nil {
			c.errorf(where, "Validate of version %s has no effect: a custom storage handles this itself", v.GroupVersion.Version)
		}
	}
}

// structure checks that the Go type has the shape of a Kubernetes object.
func (c *checker) structure(where string, t reflect.Type) {
	if t.Kind() != reflect.Struct {
		c.errorf(where, "Go type %s is not a struct", t)
		return
	}
	for name, want := range map[string]reflect.Type{
		"TypeMeta":   reflect.TypeFor[metav1.TypeMeta](),
		"ObjectMeta": reflect.TypeFor[metav1.ObjectMeta](),
	} {
		if f, ok := t.FieldByName(name); !ok || f.Type != want {
			c.errorf(where, "Go type %s does not embed metav1.%s", t, name)
		}
	}
}

func (c *checker) versions(where string, k *Kind) {
	seen := map[string]bool{}
	for _, v := range k.Versions {
		if v.SameType && v.Facts == nil {
			continue // has been reported
		}
		if v.Facts == nil {
			c.errorf(where, "Go type %s: no generated code: run annex generate, and pass the package's API function", v.Type)
			continue
		}
		facts := v.Facts()
		v.GroupVersion = facts.GroupVersion
		at := fmt.Sprintf("%s, version %s", where, v.GroupVersion.Version)
		if v.GroupVersion.Group != k.Group {
			c.errorf(at, "package %s is generated for group %q", v.Type.PkgPath(), v.GroupVersion.Group)
			continue
		}
		if seen[v.GroupVersion.Version] {
			c.errorf(at, "declared twice")
		}
		seen[v.GroupVersion.Version] = true
		if v.Type.Name() != k.Name {
			c.errorf(at, "Go type %s must have the name of the kind's first, %s", v.Type, k.Name)
		}
		if v.Type != k.Hub().Type || v != k.Hub() && !v.SameType {
			c.structure(at, v.Type)
			if v.Generated && !c.generatedConversions(at, k.Hub(), v, facts) {
				continue
			}
			if v.ToHub == nil || v.FromHub == nil {
				c.errorf(at, "missing conversion: both directions between %s and the hub %s are needed", v.Type, k.Hub().Type)
			}
		}
		c.types(at, v, facts.AddToScheme)
		if v.Unserved && v.Validate != nil {
			c.errorf(at, "Validate on an unserved version never runs")
		}
		if v.Unserved && v.Deprecated != "" {
			c.errorf(at, "a version cannot be both unserved and deprecated: no client would get the warning")
		}
	}
}

// generatedConversions completes a version with the conversions of its facts.
func (c *checker) generatedConversions(where string, hub, v *Version, facts api.Facts) bool {
	if facts.AddConversions == nil {
		c.errorf(
			where,
			"package %s has no generated conversions: add +k8s:conversion-gen=%s to the package and run annex generate, or use Version",
			v.Type.PkgPath(),
			hub.Type.PkgPath(),
		)
		return false
	}
	scheme := runtime.NewScheme()
	if err := facts.AddConversions(scheme); err != nil {
		c.errorf(where, "register generated conversions: %v", err)
		return false
	}
	convert := func(in, out runtime.Object) error { return scheme.Converter().Convert(in, out, nil) }
	for _, pair := range [][2]*Version{{v, hub}, {hub, v}} {
		// Handwritten functions may reject an empty object with their own messages.
		if err := convert(pair[0].New(), pair[1].New()); err != nil && strings.Contains(err.Error(), "unknown conversion") {
			c.errorf(
				where,
				"package %s has no conversion from %s to %s: add +k8s:conversion-gen=%s to the package, and run annex generate",
				v.Type.PkgPath(),
				pair[0].Type,
				pair[1].Type,
				hub.Type.PkgPath(),
			)
			return false
		}
	}
	v.ToHub, v.FromHub = convert, convert
	return true
}

// types checks that the version's package registers its types, and finds the list type.
func (c *checker) types(where string, v *Version, add func(*runtime.Scheme) error) {
	scheme := runtime.NewScheme()
	if add == nil {
		c.errorf(where, "the package's generated code has no AddToScheme")
		return
	}
	if err := add(scheme); err != nil {
		c.errorf(where, "register the package's types: %v", err)
		return
	}
	known := scheme.KnownTypes(v.GroupVersion)
	if known[v.Type.Name()] != v.Type {
		c.errorf(where, "package %s does not register %s; run annex generate", v.Type.PkgPath(), v.Type.Name())
	}
	registered := known[v.Type.Name()+"List"]
	if v.ListType == nil {
		v.ListType = registered
	}
	switch {
	case registered == nil:
		c.errorf(where, "package %s has no type %sList", v.Type.PkgPath(), v.Type.Name())
		v.ListType = nil
	case v.ListType != registered:
		c.errorf(where, "wrong list type: %s is not the list of %s, %s is", v.ListType, v.Type, registered)
	default:
		items, ok := v.ListType.FieldByName("Items")
		if !ok || items.Type != reflect.SliceOf(v.Type) {
			c.errorf(where, "wrong list type: %s needs a field Items []%s", v.ListType, v.Type.Name())
		}
		if f, ok := v.ListType.FieldByName("ListMeta"); !ok || f.Type != reflect.TypeFor[metav1.ListMeta]() {
			c.errorf(where, "list type %s does not embed metav1.ListMeta", v.ListType)
		}
	}
}

func (c *checker) capabilities(where string, k *Kind) {
	if !k.Status && k.ValidateStatus != nil {
		c.errorf(where, "ValidateStatus never runs: /status is not served")
	}
	if !k.Status && k.PrepareForStatus != nil {
		c.errorf(where, "PrepareForStatus never runs: /status is not served")
	}
	if k.Grace != nil && k.Grace.Of == nil && (k.Grace.Period < time.Second || k.Grace.Period%time.Second != 0) {
		c.errorf(where, "GracePeriod must be a number of seconds, at least one, not %s", k.Grace.Period)
	}
	switch {
	case k.TTL < 0 || k.TTL%time.Second != 0:
		c.errorf(where, "TTL must be a number of seconds, not %s", k.TTL)
	case k.TTL > 0 && (k.Source != nil || k.CustomStorage != nil):
		c.errorf(where, "TTL has no effect: the server does not store the objects")
	}
	switch h := k.History; {
	case h == nil:
	case h.Age < 0 || h.Revisions < 0 || h.Bytes < 0 || h.Age == 0 && h.Revisions == 0:
		c.errorf(where, "History must have an Age, a number of Revisions, or both, and no negative bound")
	case k.Source != nil || k.CustomStorage != nil:
		c.errorf(where, "History has no effect: the server does not store the objects")
	}
	columns := map[string]bool{}
	for _, col := range k.Columns {
		name := strings.ToLower(col.Name)
		if name == "" || columns[name] {
			c.errorf(where, "column %q: names must be set and unique", col.Name)
		}
		columns[name] = true
		if !slices.Contains([]string{"string", "integer", "number", "boolean", "date"}, col.Type) {
			c.errorf(where, "column %q: type %q must be string, integer, number, boolean or date", col.Name, col.Type)
		}
		if col.Value == nil {
			c.errorf(where, "column %q has no Value", col.Name)
		}
	}
	fields := map[string]bool{"metadata.name": true, "metadata.namespace": true}
	for _, f := range k.Selectable {
		if fields[f.Path] {
			c.errorf(where, "selectable field %q is declared twice or built in", f.Path)
		}
		fields[f.Path] = true
	}
	c.queryFields(where, k)
}

// queryFields checks that the hub has the fields of queries. Field names in other versions may differ.
func (c *checker) queryFields(where string, k *Kind) {
	if len(k.QueryFields) > 0 && k.CustomStorage != nil {
		c.errorf(where, "Query has no effect: the server does not store the objects")
	}
	seen := map[string]bool{}
	for _, f := range k.QueryFields {
		switch {
		case ordered.Reserved(f.Name):
			c.errorf(where, "query field %q: a parameter, or a field of every kind, has the same name", f.Name)
		case seen[f.Name]:
			c.errorf(where, "query field %q is declared twice", f.Name)
		case f.Get == nil:
			c.errorf(where, "query field %q has no function that returns its value", f.Name)
		case k.Versions[0].Type.Kind() != reflect.Struct: // reported elsewhere
		default:
			if why := missing(k.Versions[0].Type, strings.Split(f.Name, ".")); why != "" {
				c.errorf(where, "query field %q does not exist in version %s, the hub: %s", f.Name, k.Versions[0].GroupVersion.Version, why)
			}
		}
		seen[f.Name] = true
	}
}

// paths checks that every version has the fields that the kind's features need.
func (c *checker) paths(where string, k *Kind) {
	if k.Versions[0].Type.Kind() != reflect.Struct {
		return
	}
	for _, v := range k.Versions {
		if index, ok := indexOf(v.Type, "status"); k.Status && !withoutStatusField(v) && (!ok || v.Type.FieldByIndex(index).Name != "Status") {
			c.errorf(where, "Go type %s has no field Status `json:\"status\"` to serve /status from", v.Type)
		}
	}
	if k.Scale != nil {
		c.scalePath(where, k, "SpecReplicas", k.Scale.SpecReplicas, "spec", reflect.Int32, reflect.Int64)
		c.scalePath(where, k, "StatusReplicas", k.Scale.StatusReplicas, "status", reflect.Int32, reflect.Int64)
		if len(k.Scale.Selector) > 0 {
			c.scalePath(where, k, "Selector", k.Scale.Selector, "", reflect.String)
		}
	}
	for _, f := range k.Selectable {
		for _, v := range k.Versions {
			if why := missing(v.Type, strings.Split(f.Path, ".")); why != "" && !v.Unserved {
				c.errorf(where, "selectable field %q does not exist in version %s: %s", f.Path, v.GroupVersion.Version, why)
			}
		}
	}
	c.indexes(where, k)
}

// withoutStatusField reports whether a marker enables /status for a Go type without a status. As in a cluster,
// /status is then served, and writes to it have no effect.
func withoutStatusField(v *Version) bool {
	_, inJSON := indexOf(v.Type, "status")
	_, inGo := v.Type.FieldByName("Status")
	return !inJSON && !inGo && v.Structural != nil && v.Structural.HasStatus()
}

func (c *checker) indexes(where string, k *Kind) {
	for i, path := range k.IndexFields {
		switch {
		case !slices.ContainsFunc(k.Selectable, func(f SelectableField) bool { return f.Path == path }):
			c.errorf(where, "IndexFields(%q): unknown selectable field: declare it with SelectableField", path)
		case slices.Contains(k.IndexFields[:i], path):
			c.errorf(where, "IndexFields(%q): indexed twice", path)
		}
	}
	for i, key := range k.IndexLabels {
		if problems := content.IsLabelKey(key); len(problems) > 0 {
			c.errorf(where, "IndexLabels(%q): not a label key: %s", key, strings.Join(problems, "; "))
		}
		if slices.Contains(k.IndexLabels[:i], key) {
			c.errorf(where, "IndexLabels(%q): indexed twice", key)
		}
	}
}

func (c *checker) scalePath(where string, k *Kind, name string, path []string, root string, want ...reflect.Kind) {
	if len(path) < 2 || root != "" && path[0] != root {
		c.errorf(where, "Scale %s: path .%s does not begin in .%s", name, strings.Join(path, "."), root)
		return
	}
	for _, v := range k.Versions {
		t, ok := FieldAt(v.Type, path)
		if ok && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		selector := name == "Selector" && t == reflect.TypeFor[metav1.LabelSelector]()
		if !v.Unserved && (!ok || !slices.Contains(want, t.Kind()) && !selector) {
			c.errorf(where, "Scale %s: .%s must be a field of type %s in "+
				"version %s", name, strings.Join(path, "."), oneOf(want), v.GroupVersion.Version)
		}
	}
}

// oneOf formats kinds of Go types.
func oneOf(kinds []reflect.Kind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.String()
	}
	return strings.Join(names, " or ")
}

// FieldAt returns the type of the field at a path of JSON names.
func FieldAt(t reflect.Type, path []string) (reflect.Type, bool) {
	for _, name := range path {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		index, ok := indexOf(t, name)
		if !ok {
			return nil, false
		}
		t = t.FieldByIndex(index).Type
	}
	return t, true
}

// ValueAt returns the value at a path of JSON names, following pointers. A nil pointer is set to a new value if fill
// is set; otherwise ValueAt returns the zero Value, as it does if the field does not exist.
func ValueAt(v reflect.Value, path []string, fill bool) reflect.Value {
	v = follow(v, fill)
	for _, name := range path {
		if !v.IsValid() {
			return v
		}
		index, ok := indexOf(v.Type(), name)
		if !ok {
			return reflect.Value{}
		}
		v = follow(v.FieldByIndex(index), fill)
	}
	return v
}

func follow(v reflect.Value, fill bool) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() && fill {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

// indexOf finds the field with a JSON name in a struct and in its inlined structs.
func indexOf(t reflect.Type, name string) ([]int, bool) {
	if t.Kind() != reflect.Struct {
		return nil, false
	}
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Index, true
		}
		if f.Anonymous && (tag == "" || strings.Contains(options, "inline")) {
			if inner, ok := indexOf(f.Type, name); ok {
				return slices.Concat(f.Index, inner), true
			}
		}
	}
	return nil, false
}

// VersionNames returns the versions of the kind's objects, the hub first. Versions of other groups include the group.
func (k *Kind) VersionNames() []string {
	var names []string
	for _, v := range k.AllVersions() {
		name := v.GroupVersion.Version
		if v.GroupVersion.Group != k.Primary().Group {
			name = v.GroupVersion.String()
		}
		names = append(names, name)
	}
	return names
}

// APIServiceNames returns the names of the APIServices of the served versions.
func (s *Server) APIServiceNames() []string {
	var names []string
	for _, g := range s.Groups {
		for _, gv := range g.ServedVersions() {
			names = append(names, gv.Version+"."+gv.Group)
		}
	}
	return names
}

// ServedVersions returns the group's versions that any kind serves, in the order of preference of Kubernetes: stable
// before beta before alpha, newer before older.
func (g *Group) ServedVersions() []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, k := range g.Kinds {
		for _, v := range k.Versions {
			if !v.Unserved && !slices.Contains(all, v.GroupVersion) {
				all = append(all, v.GroupVersion)
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	return all
}
