package login

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/identity/credential"
	"github.com/annexapi/annex/store"
)

// prefix is the storage prefix of sessions.
const prefix = "/login.annex/sessions"

// glimpse is how long a session is cached. The replica that ends a session forgets it at once; other replicas may
// accept it for this long.
const glimpse = time.Second

// The types of sessions.
const (
	refreshing = "refresh" // has a refresh token
	ofClient   = "client"  // client_credentials: the client requests a new token instead of refreshing
	ofPage     = "page"    // has a cookie
	ofCode     = "code"    // an authorization code, to be exchanged once
)

// Session is the stored record of a sign-in. It is exported for the storage.
type Session struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Type string `json:"type"`
	// Secret is the digest of the secret that is needed to use the session.
	Secret string `json:"secret,omitempty"`
	// User and UID identify the entry in the user file, and Password is the fingerprint of its hash at the time of
	// the sign-in. If the session belongs to a client itself, User is the client's ID.
	User     string `json:"user,omitempty"`
	UID      string `json:"uid,omitempty"`
	Password string `json:"password,omitempty"`
	// Client is the ID of the client that began the session; empty if the request named none.
	Client string `json:"client,omitempty"`
	// Provider is the provider that authenticated the user, with Groups; empty means the user file.
	Provider string   `json:"provider,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	// Certificate is the client certificate, as DER, whose owner began the session by a link. If ByToken is set, it
	// was the bearer of a token, which is not stored.
	Certificate []byte `json:"certificate,omitempty"`
	ByToken     bool   `json:"byToken,omitempty"`
	// Until is when an unused session ends. Ends is when the session ends in any case.
	Until metav1.Time `json:"until"`
	Ends  metav1.Time `json:"ends"`
	// RedirectURI and Challenge belong to a code. Exchanged is the name of the session that the code was exchanged
	// for.
	RedirectURI string `json:"redirectURI,omitempty"`
	Challenge   string `json:"challenge,omitempty"`
	Exchanged   string `json:"exchanged,omitempty"`
	// Reused records that a code was presented again after its exchange.
	Reused bool `json:"reused,omitempty"`
}

func (s *Session) isOver(now time.Time) bool {
	return !now.Before(s.Until.Time) || !now.Before(s.Ends.Time)
}

// DeepCopyObject implements runtime.Object.
func (s *Session) DeepCopyObject() runtime.Object {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Groups = append([]string(nil), s.Groups...)
	c.Certificate = append([]byte(nil), s.Certificate...)
	return &c
}

// SessionList is required by the storage; sessions are never listed.
type SessionList struct {
	metav1.TypeMeta `          json:",inline"`
	metav1.ListMeta `          json:"metadata,omitempty"`
	Items           []Session `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *SessionList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Session))
	}
	return &c
}

// codec stores sessions as JSON.
type codec struct{}

var _ runtime.Codec = codec{}

func (codec) Encode(object runtime.Object, w io.Writer) error {
	return json.NewEncoder(w).Encode(object)
}

func (codec) Identifier() runtime.Identifier { return "login" }

func (codec) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	s, ok := into.(*Session)
	if !ok {
		s = &Session{}
	}
	*s = Session{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, nil, errors.New("the session is not readable")
	}
	kind := s.GroupVersionKind()
	return s, &kind, nil
}

// Stored describes the resource of the sessions for the backend.
func Stored() store.Resource {
	return store.Resource{
		Resource: schema.GroupResource{Group: "login.annex", Resource: "sessions"},
		Prefix:   prefix,
		Codec:    codec{},
		New:      func() runtime.Object { return &Session{} },
		NewList:  func() runtime.Object { return &SessionList{} },
	}
}

// Prefix returns the storage prefix of sessions.
func Prefix() string { return prefix }

// errGone reports that a session has ended or never existed.
var errGone = errors.New("the session has ended")

// sessions accesses the stored sessions.
type sessions struct {
	storage storage.Interface
	clock   clock.PassiveClock
	seen    *cache.LRUExpireCache // *Session by name
	ended   atomic.Uint64         // number of ended sessions; a read that overlaps an end is not cached
}

func newSessions(s storage.Interface, c clock.PassiveClock) *sessions {
	return &sessions{storage: s, clock: c, seen: cache.NewLRUExpireCacheWithClock(4096, expiring{c})}
}

// expiring adapts the clock to the cache.
type expiring struct{ clock.PassiveClock }

func key(name string) string { return prefix + "/" + name }

// ticket is the client's reference to a session: its ID and the current secret. The session's name is a digest of the
// ID. Access tokens contain the name, and the ID cannot be derived from it.
type ticket struct{ id, secret [16]byte }

func newTicket() (t ticket) {
	rand.Read(t.id[:])
	rand.Read(t.secret[:])
	return t
}

var encoding = base64.RawURLEncoding.Strict()

func (t ticket) String() string { return encoding.EncodeToString(append(t.id[:], t.secret[:]...)) }

// nameSize is the length of a session's name, in characters.
const nameSize = 32

func (t ticket) name() string {
	sum := sha256.Sum256(t.id[:])
	return hex.EncodeToString(sum[:nameSize/2])
}

func (t ticket) digest() string {
	sum := sha256.Sum256(t.secret[:])
	return hex.EncodeToString(sum[:])
}

func parseTicket(text string) (t ticket, ok bool) {
	data, err := encoding.DecodeString(text)
	if err != nil || len(data) != len(t.id)+len(t.secret) {
		return t, false
	}
	copy(t.id[:], data)
	copy(t.secret[:], data[len(t.id):])
	return t, true
}

// create stores a new session that ends after longest, or earlier if it is unused for idle.
func (s *sessions) create(ctx context.Context, t ticket, session *Session, idle, longest time.Duration) error {
	now := s.clock.Now()
	session.TypeMeta = metav1.TypeMeta{APIVersion: "login.annex/v1", Kind: "Session"}
	session.Name, session.Secret = t.name(), t.digest()
	session.CreationTimestamp = metav1.NewTime(now)
	session.Until, session.Ends = metav1.NewTime(now.Add(min(idle, longest))), metav1.NewTime(now.Add(longest))
	err := s.storage.Create(ctx, key(session.Name), session, &Session{}, seconds(min(idle, longest)))
	if err != nil {
		return fmt.Errorf("store the session: %w", err)
	}
	return nil
}

func seconds(d time.Duration) uint64 { return uint64(max(1, (d+time.Second-1)/time.Second)) }

// get returns a session that has not ended. The caller must not modify it.
func (s *sessions) get(ctx context.Context, name string) (*Session, error) {
	if known, ok := s.seen.Get(name); ok && !known.(*Session).isOver(s.clock.Now()) {
		return known.(*Session), nil
	}
	if _, err := hex.DecodeString(name); err != nil || len(name) != nameSize {
		return nil, errGone // no ticket has such a name
	}
	session, ended := &Session{}, s.ended.Load()
	err := s.storage.Get(ctx, key(name), storage.GetOptions{}, session)
	switch {
	case storage.IsNotFound(err):
		return nil, errGone
	case err != nil:
		return nil, credential.Unavailable(fmt.Errorf("read the session: %w", err))
	case session.isOver(s.clock.Now()):
		return nil, errGone
	}
	s.seen.Add(name, session, glimpse)
	if s.ended.Load() != ended {
		s.seen.Remove(name)
	}
	return session, nil
}

// errReused reports that a ticket has an earlier secret of the session.
var errReused = errors.New("the secret has been used before")

// use returns the session of a ticket and extends it by idle. If rotate is set, the session gets a new secret. A ticket
// with any secret but the current one ends the session, because either that ticket or its successor has been stolen.
func (s *sessions) use(
	ctx context.Context,
	t ticket,
	kind string,
	idle time.Duration,
	check func(*Session) error,
	rotate bool,
) (*Session, ticket, error) {
	next, used := t, &Session{}
	if rotate {
		rand.Read(next.secret[:])
	}
	err := s.storage.GuaranteedUpdate(
		ctx,
		key(t.name()),
		used,
		false,
		nil,
		func(object runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			session := object.(*Session).DeepCopyObject().(*Session)
			now := s.clock.Now()
			switch {
			case session.Type != kind || session.isOver(now):
				return nil, nil, errGone
			case subtle.ConstantTimeCompare([]byte(session.Secret), []byte(t.digest())) != 1:
				return nil, nil, errReused
			}
			if err := check(session); err != nil {
				return nil, nil, err
			}
			left := min(idle, session.Ends.Sub(now))
			session.Secret, session.Until = next.digest(), metav1.NewTime(now.Add(left))
			ttl := seconds(left)
			return session, &ttl, nil
		},
		nil,
	)
	switch {
	case storage.IsNotFound(err):
		return nil, next, errGone
	case errors.Is(err, errReused):
		return nil, next, errors.Join(err, s.end(ctx, t.name()))
	case err != nil:
		return nil, next, err
	}
	return used, next, nil
}

// exchangedFor is how long an exchanged code is kept, to detect its reuse.
const exchangedFor = 10 * time.Minute

// exchange uses a code, once, for the session with the given name, which the caller then creates and confirms. If the
// code was exchanged before, exchange ends the session of the first exchange, because the code has been stolen.
func (s *sessions) exchange(ctx context.Context, t ticket, name string, check func(*Session) error) (*Session, error) {
	used, became := &Session{}, ""
	err := s.storage.GuaranteedUpdate(
		ctx,
		key(t.name()),
		used,
		false,
		nil,
		func(object runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			code := object.(*Session).DeepCopyObject().(*Session)
			became = code.Exchanged
			ttl := seconds(exchangedFor)
			switch {
			case code.Type != ofCode || subtle.ConstantTimeCompare([]byte(code.Secret), []byte(t.digest())) != 1:
				return nil, nil, errGone
			case became != "":
				code.Reused = true
				return code, &ttl, nil
			case code.isOver(s.clock.Now()):
				return nil, nil, errGone
			}
			if err := check(code); err != nil {
				return nil, nil, err
			}
			code.Exchanged = name
			return code, &ttl, nil
		},
		nil,
	)
	switch {
	case storage.IsNotFound(err):
		return nil, errGone
	case err != nil:
		return nil, err
	case became != "":
		return nil, errors.Join(errReused, s.end(ctx, became))
	}
	return used, nil
}

// confirm ends the newly created session of a code if the code was presented again before the session existed.
func (s *sessions) confirm(ctx context.Context, t ticket, name string) error {
	code := &Session{}
	err := s.storage.Get(ctx, key(t.name()), storage.GetOptions{}, code)
	switch {
	case err != nil:
		return fmt.Errorf("read the code: %w", errors.Join(err, s.end(ctx, name)))
	case code.Reused:
		return errors.Join(errReused, s.end(ctx, name))
	}
	return nil
}

// end ends a session. A missing session is not an error.
func (s *sessions) end(ctx context.Context, name string) error {
	err := s.storage.Delete(
		ctx,
		key(name),
		&Session{},
		nil,
		func(context.Context, runtime.Object) error { return nil },
		nil,
		storage.DeleteOptions{},
	)
	s.ended.Add(1)
	s.seen.Remove(name)
	if storage.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	return nil
}
