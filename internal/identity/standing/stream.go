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

// Stream is a request that takes long. It is the request's context as well, which saves each of ten thousand watches an
// allocation.
type Stream struct {
	context.Context
	checker  *Checker
	accepted credential.Accepted
	// presented is the request as it came; nil when the stream has joined.
	presented *http.Request

	// The Checker's mu guards these.
	group  *group
	index  int // among the group's members
	end    context.CancelFunc
	cause  error
	writer http.ResponseWriter // nil if it is not to be cut
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

// From returns the stream of a request; nil if it is none.
func From(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}

// Begin keeps the credentials that a request presents, before authentication takes them out. Requests that come over a
// connection within the process are the server's own: they are returned as they are.
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

// Impersonating returns the request as it came if its caller acts as another user; nil otherwise, and after Join.
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

// Asked is what a request was allowed by, and is asked once more.
type Asked struct {
	// Attributes are of the caller, or of the user that it impersonates. Each has to be allowed.
	Attributes []authorizer.Attributes
	// Impersonates reports that the user of Attributes is not the caller.
	Impersonates bool
	// More are asked before the attributes, with the caller, and return why the request may not go on. They go by nothing but
	// what Attributes, Impersonates and the Scope hold.
	More []func(ctx context.Context, caller user.Info) error
	// Scope is what More go by beside that.
	Scope []string
}

// Join has a stream checked from now on, until Leave. When it is to end, writer is given a moment to write the rest; nil is for
// requests whose connection is taken over. A stream whose caller is not known is not checked.
func (s *Stream) Join(asked Asked, writer http.ResponseWriter) {
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
		c.forget(g) // one that is checked now is forgotten then
	}
}

// OnEnd has end called when the stream has to end, at once if that is so already. It reports false if there is such a function
// already: then the context of the stream's request ends.
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

// Within returns a context that ends with the stream, for a cause that is an API status: Unauthorized or Forbidden. It is ctx,
// which has to be made of the stream's, if something else ends with the stream already. The function has to be called when
// the request is over.
func (s *Stream) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancelCause(ctx)
	if !s.OnEnd(func() { cancel(s.Cause()) }) {
		cancel(nil)
		return ctx, func() {}
	}
	return within, func() { cancel(nil) }
}

// Cause is why the stream had to end; nil while it may go on.
func (s *Stream) Cause() error {
	s.checker.mu.Lock()
	defer s.checker.mu.Unlock()
	return s.cause
}

func isUnavailable(err error) bool { return errors.Is(err, credential.ErrUnavailable) }

// keyOfBearer tells credentials, with their callers, apart.
func keyOfBearer(r *http.Request, accepted *credential.Accepted) (key [sha256.Size]byte) {
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
	case credential.None: // the place of the client, and what the request is, may decide
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		write(h, host, r.Host, r.Method, r.URL.Path)
	case credential.Proxy: // names the caller in headers, of which the user is all
	}
	h.Sum(key[:0])
	return key
}

func keyOfGroup(bearer [sha256.Size]byte, r *http.Request, asked Asked) (key [sha256.Size]byte) {
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

// write writes texts so that no others are written alike.
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
