package define

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/structural"
)

// Subresource is a custom subresource: an action, which receives request objects; a view, which is read; a part of
// the object; or a connection of clients to a handler.
type Subresource struct {
	Name string
	// Object is the Go type of an action's requests, or of the options of other subresources; nil means none.
	Object reflect.Type

	// Operations are the supported operations of an action, which Handle carries out. Answer is the Go type of the
	// results of actions and views.
	Operations []admission.Operation
	Answer     reflect.Type
	Validate   func(ctx context.Context, obj runtime.Object) field.ErrorList
	Handle     func(ctx context.Context, call *Call) (runtime.Object, error)
	// Long makes an operation carry out the action; nil means that Handle does.
	Long *Long

	// IsView is set for a view. Look returns its result.
	IsView bool
	Look   func(ctx context.Context, view *View) (runtime.Object, error)

	// Take makes the subresource a part of the object, which clients get, put and patch. It copies the fields of the
	// part from sent, the client's object, into obj. ValidateChange checks the result. IsPart is set even if Take is
	// nil.
	IsPart         bool
	Take           func(ctx context.Context, obj, sent runtime.Object)
	ValidateChange func(ctx context.Context, obj, old runtime.Object) field.ErrorList

	// Methods are the HTTP methods of connections, and Connect creates the handler of each connection. Connections
	// are long-running unless LongRunning returns false.
	Methods     []string
	Connect     func(ctx context.Context, connection *Connection) (http.Handler, error)
	LongRunning func(options runtime.Object) bool
	// Responds is the Go type of the responses of connections; nil if it is not known.
	Responds reflect.Type
	// Subpaths makes requests below the subresource's path connect as well. The option PathOption then contains the
	// rest of the path.
	Subpaths bool

	// Facts are the facts of the package that declares Object and Answer; nil if that is the package of one of the
	// kind's versions. GroupVersion belongs to Facts, and is empty without them; Check sets it.
	Facts        func() api.Facts
	GroupVersion schema.GroupVersion

	// Structural contains the kubebuilder markers of Object; nil if it has none. Check sets it.
	Structural *structural.Version
	// Default fills in the generated defaults of Object. Check sets it.
	Default func(obj runtime.Object)
}

// Call is a request to an action.
type Call struct {
	Operation       admission.Operation
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object of the subresource, in the hub version.
	Parent runtime.Object
	// Kind is the kind of Parent, in the version of Resource.
	Kind        string
	Subresource *Subresource
	Object      runtime.Object
	User        user.Info
	DryRun      bool
	// Wait is the query parameter wait.
	Wait string
	// Start creates an operation for the call of a long action.
	Start func(ctx context.Context) (runtime.Object, error)
	// Update and UpdateStatus modify the parent like its main endpoint and /status.
	Update, UpdateStatus func(ctx context.Context, change func(obj runtime.Object) error) (runtime.Object, error)
}

// Change calls the Update or UpdateStatus of a Call with a function that changes a T, and returns the stored object.
func Change[T any](
	ctx context.Context,
	update func(ctx context.Context, change func(obj runtime.Object) error) (runtime.Object, error),
	change func(obj *T) error,
) (*T, error) {
	stored, err := update(ctx, func(obj runtime.Object) error { return change(any(obj).(*T)) })
	if err != nil {
		return nil, err
	}
	return any(stored).(*T), nil
}

// View is a request for a view.
type View struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
	Parent          runtime.Object
	// Options are nil if the view has none.
	Options runtime.Object
	User    user.Info
}

// Connection is a request for a connection.
type Connection struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
	Parent          runtime.Object
	// Options are nil if the subresource has none.
	Options   runtime.Object
	User      user.Info
	Responder rest.Responder
}

// PathOption is the option of a connection with the rest of the request's path after the subresource, including its
// slash.
const PathOption = "path"

// Kind returns the kind of the subresource in discovery, chosen as for the subresources of pods: the answer of a
// view, or else the options or requests. It is empty without them; discovery then uses the parent's kind.
func (s *Subresource) Kind() string {
	if s.IsView {
		return s.Answer.Name()
	}
	if s.Object == nil {
		return ""
	}
	return s.Object.Name()
}

// Connects reports whether the subresource connects clients to a handler.
func (s *Subresource) Connects() bool { return s.Answer == nil && !s.IsPart }

// ReadsQuery reports whether Object is read from the query of a request.
func (s *Subresource) ReadsQuery() bool { return s.Object != nil && (s.IsView || s.Connects()) }

// Verbs returns the verbs of the subresource in authorization and discovery.
func (s *Subresource) Verbs() []string {
	var verbs []string
	switch {
	case s.IsView:
		verbs = append(verbs, "get")
	case s.IsPart:
		verbs = append(verbs, "get", "patch", "update")
	}
	for _, operation := range s.Operations {
		verbs = append(verbs, strings.ToLower(string(operation)))
	}
	for _, method := range s.Methods {
		if verb := connectMethods[method]; verb != "" {
			verbs = append(verbs, verb)
		}
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// connectMethods are the possible methods of connections, with their verbs in discovery.
var connectMethods = map[string]string{
	http.MethodGet:     "get",
	http.MethodHead:    "",
	http.MethodPost:    "create",
	http.MethodPut:     "update",
	http.MethodPatch:   "patch",
	http.MethodDelete:  "delete",
	http.MethodOptions: "",
}

// New returns an empty request, or options with the defaults that apply to an empty query.
func (s *Subresource) New() runtime.Object {
	obj := reflect.New(s.Object).Interface().(runtime.Object)
	if !s.ReadsQuery() {
		return obj
	}
	if o, ok := obj.(Defaulted); ok {
		o.SetDefaults()
	}
	if s.Structural != nil {
		s.Structural.Fill(obj, nil) // query parameters override them, also with zeros
	}
	return obj
}

// InVersion returns the group and version of the subresource's messages when the kind is served in another one: those
// of Facts, or else the kind's.
func (s *Subresource) InVersion(kind schema.GroupVersion) schema.GroupVersion {
	if s.Facts != nil {
		return s.GroupVersion
	}
	return kind
}

// Defaulted is implemented by options with defaults that a query can override with a zero, such as a boolean that is
// true.
type Defaulted interface {
	// SetDefaults is called before the query is read.
	SetDefaults()
}

// Types returns the Go types in the subresource's requests and responses, except for the kind's own, Status, and
// operations, which are a kind themselves.
func (s *Subresource) Types(k *Kind) []reflect.Type {
	var types []reflect.Type
	all := []reflect.Type{s.Object, s.Answer, s.Responds}
	if s.Long != nil {
		all = []reflect.Type{s.Object}
	}
	for _, t := range all {
		if t != nil && t != k.Hub().Type && t != reflect.TypeFor[metav1.Status]() && !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}

func (c *checker) subresources(where string, k *Kind) {
	seen := map[string]bool{}
	for i, s := range k.CustomSubresources {
		if s == nil {
			c.errorf(where, "subresource %d is nil", i)
			continue
		}
		at := fmt.Sprintf("%s, subresource %q", where, s.Name)
		switch {
		case s.Name == "status" || s.Name == "scale":
			c.errorf(at, "the name is reserved: the field Status adds /status, and Scale adds /scale")
		case len(validation.IsDNS1035Label(s.Name)) > 0:
			c.errorf(at, "%s", strings.Join(validation.IsDNS1035Label(s.Name), "; "))
		case seen[s.Name]:
			c.errorf(at, "declared twice")
		}
		seen[s.Name] = true
		if k.CustomStorage != nil {
			c.errorf(at, "has no effect: a custom storage has its own subresources, see Subresourcer")
			continue
		}
		switch {
		case s.IsPart:
			c.part(at, k, s)
		case s.IsView:
			c.view(at, s)
		case s.Connects():
			c.connection(at, s)
		default:
			c.requests(at, s, k.Hub().Type)
		}
		c.subresourceTypes(at, k, s)
	}
}

// requests checks an action on a kind whose hub is parent.
func (c *checker) requests(where string, s *Subresource, parent reflect.Type) {
	if s.Handle == nil || s.Long != nil && s.Long.Run == nil {
		c.errorf(where, "the function is missing")
	}
	if s.Long != nil && s.Long.TTL > 0 && s.Long.TTL%time.Second != 0 {
		c.errorf(where, "TTL must be a number of seconds, not %s", s.Long.TTL)
	}
	if len(s.Operations) == 0 {
		c.errorf(where, "On: add at least one operation, Create or Update")
	}
	for i, operation := range s.Operations {
		switch {
		case operation != admission.Create && operation != admission.Update:
			c.errorf(where, "On: unsupported operation %q: use Create or Update", operation)
		case slices.Contains(s.Operations[:i], operation):
			c.errorf(where, "On: %s is named twice", operation)
		}
	}
	if s.Facts != nil && (s.Answer == parent || s.Long != nil) {
		c.errorf(where, "MessagesOf: the answer %s has another group and version than the request: use metav1.Status as answer", s.Answer)
	}
	if f, ok := structField(
		s.Object,
		"ObjectMeta",
	); slices.Contains(s.Operations, admission.Update) &&
		(!ok || f.Type != reflect.TypeFor[metav1.ObjectMeta]()) {
		c.errorf(where, "On: an Update needs the name of an object, and Go type %s has no name: embed metav1.ObjectMeta, or "+
			"use Create", s.Object)
	}
}

func (c *checker) part(where string, k *Kind, s *Subresource) {
	if s.Take == nil {
		c.errorf(where, "the function is missing")
	}
	if !k.Updatable() {
		c.errorf(where, "the kind's objects cannot be updated: its source has no Update")
	}
}

func (c *checker) view(where string, s *Subresource) {
	if s.Look == nil {
		c.errorf(where, "the function is missing")
	}
	if s.Answer == reflect.TypeFor[metav1.Status]() {
		c.errorf(where, "a view cannot return metav1.Status: return an error instead, or declare an Action")
	}
	c.parameters(where, s)
}

func (c *checker) connection(where string, s *Subresource) {
	if s.Connect == nil {
		c.errorf(where, "the function is missing")
	}
	if len(s.Methods) == 0 {
		c.errorf(where, "Methods: add at least one method, such as GET")
	}
	for i, method := range s.Methods {
		if _, ok := connectMethods[method]; !ok {
			c.errorf(where, "Methods: unsupported method %q: use GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS", method)
		} else if slices.Contains(s.Methods[:i], method) {
			c.errorf(where, "Methods: duplicate method %s", method)
		}
	}
	c.parameters(where, s)
}

// parameters checks that the options can be expressed in a query.
func (c *checker) parameters(where string, s *Subresource) {
	if s.Object != nil && s.Object.Kind() != reflect.Struct {
		return
	}
	path := false
	for f := range optionFields(s.Object) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" || name == "-":
			c.errorf(where, "option %s of Go type %s has no name: give it a json tag", f.Name, s.Object)
		case !isParameter(f.Type):
			c.errorf(where, "option %s of Go type %s cannot be a query parameter: use a string, boolean, number, metav1.Time, a pointer to "+
				"one, []string or []int32", f.Name, s.Object)
		}
		path = path || name == PathOption && f.Type.Kind() == reflect.String
	}
	if s.Subpaths && !path {
		c.errorf(where, "Subpaths: the options have no field for the path: add a string field with the json tag %q", PathOption)
	}
}

// optionFields yields the fields of options that a query may set. t may be nil.
func optionFields(t reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		if t == nil {
			return
		}
		for f := range t.Fields() {
			if f.IsExported() && f.Type != reflect.TypeFor[metav1.TypeMeta]() && !yield(f) {
				return
			}
		}
	}
}

// isParameter reports whether a value of the type can be read from a query; package convert reads it.
func isParameter(t reflect.Type) bool {
	if t == reflect.TypeFor[[]string]() || t == reflect.TypeFor[[]int32]() {
		return true
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
		return true
	}
	return t == reflect.TypeFor[metav1.Time]()
}

// subresourceTypes checks that a package of the kind's versions registers the types, except for options, which any
// package may declare, and that no version has another type with the same name.
func (c *checker) subresourceTypes(where string, k *Kind, s *Subresource) {
	for _, t := range s.Types(k) {
		if _, ok := structField(t, "TypeMeta"); !ok {
			c.errorf(where, "Go type %s does not embed metav1.TypeMeta", t)
			continue
		}
		if s.Facts != nil {
			c.messageOf(where, s, t)
			continue
		}
		var home *Version
		for _, v := range k.AllVersions() {
			known, ok := c.known(v)
			switch other := known[t.Name()]; {
			case !ok:
			case other == t && home == nil:
				home = v
			case other != nil && other != t:
				c.errorf(
					where,
					"version %s has a %s of its own, Go type %s: a subresource must have the same Go type in all versions; give the types "+
						"different names",
					v.GroupVersion.Version,
					t.Name(),
					other,
				)
			}
		}
		if home == nil && t == s.Object && s.ReadsQuery() {
			c.unregistered(where, k, t)
			continue
		}
		if home == nil {
			c.errorf(where, "no package of a version registers Go type %s: declare the type in such a package, with the comment "+
				"+k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object, and run annex generate", t)
			continue
		}
		if t == s.Object {
			s.Default = c.defaults(where, home.Facts())
			s.Structural = c.messageRules(where, home.Facts(), t)
		}
	}
}

// messageOf checks that the package of the subresource's own facts registers a type, and completes the subresource
// from the facts.
func (c *checker) messageOf(where string, s *Subresource, t reflect.Type) {
	facts := s.Facts()
	s.GroupVersion = facts.GroupVersion
	if facts.AddToScheme == nil {
		c.errorf(where, "MessagesOf: the package's generated code has no AddToScheme; run annex generate")
		return
	}
	scheme := runtime.NewScheme()
	if err := facts.AddToScheme(scheme); err != nil {
		c.errorf(where, "MessagesOf: register the types of %s: %v", facts.GroupVersion, err)
		return
	}
	if scheme.KnownTypes(facts.GroupVersion)[t.Name()] != t {
		c.errorf(where, "the package of %[2]s in MessagesOf does not register Go type %[1]s: request and answer of an action, except "+
			"metav1.Status, must be in the same package", t, facts.GroupVersion)
		return
	}
	if t == s.Object {
		s.Default = c.defaults(where, facts)
		s.Structural = c.messageRules(where, facts, t)
	}
}

// messageRules returns the kubebuilder markers of a message; nil if its package has none. The generator treats a
// message with ObjectMeta like a kind.
func (c *checker) messageRules(where string, facts api.Facts, t reflect.Type) *structural.Version {
	var rules *structural.Version
	var err error
	kind := facts.GroupVersion.WithKind(t.Name())
	if facts.Messages != nil {
		if schema := facts.Messages()[t.Name()]; schema != "" {
			rules, err = structural.NewMessage(kind, t, schema)
		}
	}
	if rules == nil && err == nil && facts.CustomResources != nil {
		if definition := facts.CustomResources()[t.Name()]; definition != "" {
			rules, err = structural.New(kind, t, definition, false)
		}
	}
	if err != nil {
		c.errorf(where, "markers of Go type %s: %v; run annex generate", t, err)
	}
	return rules
}

// unregistered checks that no other subresource has options with the same type name, since every version of the kind
// registers options under that name.
func (c *checker) unregistered(where string, k *Kind, t reflect.Type) {
	for _, v := range k.AllVersions() {
		kind := v.GroupVersion.WithKind(t.Name())
		if other := c.options[kind]; other != nil && other != t {
			c.errorf(
				where,
				"Go type %s and Go type %s of another subresource have the same name in version %s: give them different names",
				typeName(t),
				typeName(other),
				v.GroupVersion.Version,
			)
			return
		}
		c.options[kind] = t
	}
}

// typeName returns the name of a Go type with the full path of its package.
func typeName(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

// known returns the types that a version's package registers, by kind.
func (c *checker) known(v *Version) (map[string]reflect.Type, bool) {
	if v.Facts == nil || v.Facts().AddToScheme == nil {
		return nil, false // has been reported
	}
	scheme := runtime.NewScheme()
	if err := v.Facts().AddToScheme(scheme); err != nil {
		return nil, false
	}
	return scheme.KnownTypes(v.Facts().GroupVersion), true
}

// defaults returns the generated defaults of a package.
func (c *checker) defaults(where string, facts api.Facts) func(runtime.Object) {
	scheme := runtime.NewScheme()
	if add := facts.AddDefaults; add != nil {
		if err := add(scheme); err != nil {
			c.errorf(where, "defaults of %s: %v", facts.GroupVersion, err)
		}
	}
	return scheme.Default
}

func structField(t reflect.Type, name string) (reflect.StructField, bool) {
	if t.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	return t.FieldByName(name)
}
