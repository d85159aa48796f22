package standing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/identity/credential"
)

// Stream is a long-running request. It is also the request's context, which saves an allocation for each of ten
// thousand watches.
type Stream struct {
	context.Context
	checker  *Checker
	accepted credential.Credential
	// presented is the original request; nil after Join.
	presented *http.Request

	// The fields below are guarded by the Checker's mu.
	group  *group
	index  int // in the group's members
	end    context.CancelFunc
	cause  error
	writer http.ResponseWriter // nil if the connection must not be cut
}

type streamKey struct{}

// Value implements context.Context.
func (s *Stream) Value(key any) any {
	switch key.(type) {
	case streamKey:
		return s
	case credential.Key:
		return &s.accepted
	}
	return s.Context.Value(key)
}

// From returns the stream of a request, or nil.
func From(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}

// Begin keeps the credentials of a request, before authentication removes them. It returns requests over an
// in-process connection unchanged, because the server itself sends them.
func (c *Checker) Begin(r *http.Request) *http.Request {
	if address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && address.Network() == "pipe" {
		return r
	}
	s := &Stream{Context: r.Context(), checker: c, presented: &http.Request{
		Method: r.Method, URL: r.URL, Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: r.Header.Clone(), Body: http.NoBody, Host: r.Host, RemoteAddr: r.RemoteAddr, TLS: r.TLS,
	}}
	return r.WithContext(s)
}

// Impersonating returns the original request if its caller impersonates another user; nil otherwise, and after Join.
func (s *Stream) Impersonating() *http.Request {
	if s.presented != nil {
		for name := range s.presented.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				return s.presented
			}
		}
	}
	return nil
}

// Authorization is the authorization of a request, which is repeated.
type Authorization struct {
	// Attributes have the caller, or the user that it impersonates, as their user. All of them have to be allowed.
	Attributes []authorizer.Attributes
	// Impersonates is set if the user of Attributes is not the caller.
	Impersonates bool
	// More are additional checks of the caller, before the attributes. They return the reason why the request must
	// end. Their result must depend on nothing but the caller, Attributes, Impersonates and Scope.
	More []func(ctx context.Context, caller user.Info) error
	// Scope is additional input of More, as part of the group's identity.
	Scope []string
}

// Join makes the Checker check a stream until Leave. When the stream has to end, the request gets a moment to finish
// writing to writer before its connection is cut; writer is nil for requests whose connection is hijacked. Streams
// without a known caller are not checked.
func (s *Stream) Join(asked Authorization, writer http.ResponseWriter) {
	presented := s.presented
	if s.presented = nil; presented == nil || s.accepted.User == nil {
		return
	}
	bearerKey := keyOfBearer(presented, &s.accepted)
	key := keyOfGroup(bearerKey, presented, asked)
	c := s.checker
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		b := c.bearers[bearerKey]
		if b == nil {
			b = &bearer{key: bearerKey, request: presented, kind: s.accepted.Kind, user: s.accepted.User}
			c.bearers[bearerKey] = b
		}
		b.groups++
		g = &group{key: key, bearer: b, attributes: asked.Attributes, impersonates: asked.Impersonates, more: asked.More, at: -1}
		c.groups[key] = g
		g.members = append(g.members, s)
		c.schedule(g, c.pause())
	} else {
		g.members = append(g.members, s)
	}
	s.group, s.index, s.writer = g, len(g.members)-1, writer
}

// Leave ends the checks of a stream, if it has joined.
func (s *Stream) Leave() {
	c := s.checker
	c.mu.Lock()
	defer c.mu.Unlock()
	g := s.group
	if g == nil {
		return
	}
	s.group, s.writer = nil, nil
	last := len(g.members) - 1
	moved := g.members[last]
	g.members[s.index], moved.index = moved, s.index
	g.members[last] = nil
	g.members = g.members[:last]
	if last == 0 && g.at >= 0 {
		c.forget(g) // a group that is being checked is forgotten after the check
	}
}

// OnEnd registers a function to call when the stream has to end; if the stream has ended, OnEnd calls it at once. It
// returns false if a function is already registered, in which case the context of the stream's request ends.
func (s *Stream) OnEnd(end context.CancelFunc) bool {
	s.checker.mu.Lock()
	if s.end != nil {
		s.checker.mu.Unlock()
		return false
	}
	s.end = end
	over := s.cause != nil
	s.checker.mu.Unlock()
	if over {
		end()
	}
	return true
}

// Within returns a context that ends with the stream. Its cause is an API status: Unauthorized or Forbidden. ctx has
// to derive from the stream's context. If another function of OnEnd is already registered, Within returns ctx itself.
// The returned function has to be called at the end of the request.
func (s *Stream) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancelCause(ctx)
	if !s.OnEnd(func() { cancel(s.Cause()) }) {
		cancel(nil)
		return ctx, func() {}
	}
	return within, func() { cancel(nil) }
}

// Cause returns the reason why the stream had to end; nil while it may continue.
func (s *Stream) Cause() error {
	s.checker.mu.Lock()
	defer s.checker.mu.Unlock()
	return s.cause
}

func isUnavailable(err error) bool { return errors.Is(err, credential.ErrUnavailable) }

// keyOfBearer returns the identity of a credential with its caller.
func keyOfBearer(r *http.Request, accepted *credential.Credential) (key [sha256.Size]byte) {
	h := sha256.New()
	write(h, fmt.Sprint(accepted.Kind))
	writeUser(h, accepted.User)
	if r.TLS != nil {
		for _, certificate := range r.TLS.PeerCertificates {
			write(h, string(certificate.Raw))
		}
	}
	write(h, r.Header["Authorization"]...)
	write(h, r.Header["Sec-Websocket-Protocol"]...)
	switch accepted.Kind {
	case credential.None: // the decision may depend on the client's address and on the request
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		write(h, host, r.Host, r.Method, r.URL.Path)
	case credential.Proxy: // the proxy names the caller in headers, and the user contains all of them
	}
	h.Sum(key[:0])
	return key
}

func keyOfGroup(bearer [sha256.Size]byte, r *http.Request, asked Authorization) (key [sha256.Size]byte) {
	h := sha256.New()
	h.Write(bearer[:])
	write(h, fmt.Sprint(asked.Impersonates, len(asked.More)))
	if asked.Impersonates {
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			if strings.HasPrefix(name, "Impersonate-") {
				write(h, append([]string{name}, r.Header[name]...)...)
			}
		}
	}
	write(h, asked.Scope...)
	for _, a := range asked.Attributes {
		if asked.Impersonates {
			writeUser(h, a.GetUser())
		}
		write(h, a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(),
			a.GetNamespace(), a.GetName(), a.GetPath(), fmt.Sprint(a.IsResourceRequest()))
		fields, err := a.GetFieldSelector()
		write(h, fmt.Sprint(fields), fmt.Sprint(err))
		labels, err := a.GetLabelSelector()
		write(h, fmt.Sprint(labels), fmt.Sprint(err))
	}
	h.Sum(key[:0])
	return key
}

func writeUser(h hash.Hash, u user.Info) {
	write(h, u.GetName(), u.GetUID())
	write(h, u.GetGroups()...)
	extra := u.GetExtra()
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		write(h, append([]string{name}, extra[name]...)...)
	}
}

// write hashes texts with their lengths, so that different texts cannot produce the same input.
func write(h hash.Hash, texts ...string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(texts)))
	h.Write(length[:])
	for _, text := range texts {
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		h.Write([]byte(text))
	}
}
