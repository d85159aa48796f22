package login

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// limit is a token bucket: burst attempts at once, and one more after each interval of every.
type limit struct {
	burst float64
	every time.Duration
}

// Limits apply to a name from one address, to an address, and to a name from all addresses. The last one would let
// others lock a user out, so it is high, and addresses from which the user has signed in are exempt from it.
var (
	perNameAndAddress = limit{10, 30 * time.Second}
	perAddress        = limit{50, 2 * time.Second}
	perName           = limit{200, 5 * time.Second}
	// perRight bounds correct passwords of one name, which use as much processor time as wrong ones.
	perRight = limit{60, time.Second}
)

const (
	// remembered is the number of buckets. familiar is the number of remembered pairs of name and address that have
	// signed in, and familiarTime how long such a pair is remembered.
	remembered   = 16 << 10
	familiar     = 4 << 10
	familiarTime = 30 * 24 * time.Hour
	// maxWaiting bounds the passwords that wait for a processor.
	maxWaiting = 32
	// reportInterval is the minimum time between two log lines about wrong passwords.
	reportInterval = time.Minute
)

// guard limits and runs the attempts to verify passwords. An attempt takes the same time whether the user exists or
// not, and leaves processors to other requests.
type guard struct {
	clock clock.PassiveClock
	slots chan struct{}
	queue chan struct{}
	// matches is bcrypt's comparison. Its duration depends on the cost in the hash.
	matches func(hash, secret []byte) error

	mu       sync.Mutex
	buckets  *lru.Cache // *bucket by digest
	right    *lru.Cache // time of the last success, by digest of address and name
	reported time.Time
	failed   time.Time
	refused  int
}

type bucket struct {
	used float64
	at   time.Time
}

func newGuard(c clock.PassiveClock) *guard {
	return &guard{
		clock: c, matches: bcrypt.CompareHashAndPassword, buckets: lru.New(remembered), right: lru.New(familiar),
		slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), queue: make(chan struct{}, maxWaiting),
	}
}

// rateLimitError is the error of an attempt that exceeds a limit.
type rateLimitError struct{ retryAfter time.Duration }

func (e rateLimitError) Error() string {
	return fmt.Sprintf("too many attempts: try again in %d seconds", e.seconds())
}

func (e rateLimitError) seconds() int { return max(1, int(math.Ceil(e.retryAfter.Seconds()))) }

// try reports whether secret matches hash. An empty hash stands for an unknown user and takes as long as any other.
// The correct secret of a disabled user counts as wrong. try returns rateLimitError without comparing if a limit is reached.
func (g *guard) try(r *http.Request, name, secret, hash string, disabled bool, cost int) (bool, error) {
	type limited struct {
		limit
		key [sha256.Size]byte
	}
	// The limit of the address comes first: an address over its limit creates no buckets for names, which would evict
	// those of others.
	both := digest("both", address(r), name)
	keys := []limited{{perAddress, digest("address", address(r))}, {perNameAndAddress, both}}
	if !g.isFamiliar(both) {
		keys = append(keys, limited{perName, digest("name", name)})
	}
	if hash != "" {
		keys = append(keys, limited{perRight, digest("right", name)})
	}
	for i, k := range keys {
		if after := g.take(k.key, k.limit); after > 0 {
			for _, taken := range keys[:i] {
				g.giveBack(taken.key)
			}
			return false, rateLimitError{after}
		}
	}
	right, err := g.compare(r.Context(), secret, hash, cost)
	right = right && !disabled
	for _, k := range keys {
		if err != nil || right != (k.limit == perRight) {
			g.giveBack(k.key)
		}
	}
	if right {
		g.remember(both)
	}
	if err == nil && !right {
		g.report(r.Context())
	}
	return right, err
}

// take takes one attempt from a bucket. If the bucket is used up, it returns the time until the next attempt.
func (g *guard) take(key [sha256.Size]byte, l limit) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	b := &bucket{at: now}
	if known, ok := g.buckets.Get(key); ok {
		b = known.(*bucket)
	}
	b.used = max(0, b.used-float64(now.Sub(b.at))/float64(l.every))
	b.at = now
	if b.used+1 > l.burst {
		return time.Duration((b.used + 1 - l.burst) * float64(l.every))
	}
	b.used++
	g.buckets.Add(key, b)
	return 0
}

func (g *guard) giveBack(key [sha256.Size]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known, ok := g.buckets.Get(key); ok {
		b := known.(*bucket)
		if b.used = max(0, b.used-1); b.used == 0 {
			g.buckets.Remove(key)
		}
	}
}

// remember records a successful attempt of a name from an address.
func (g *guard) remember(both [sha256.Size]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.right.Add(both, g.clock.Now())
}

func (g *guard) isFamiliar(both [sha256.Size]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.right.Get(both)
	return ok && g.clock.Now().Sub(at.(time.Time)) < familiarTime
}

// compare compares a secret with a hash when a slot is free.
func (g *guard) compare(ctx context.Context, secret, hash string, cost int) (bool, error) {
	select {
	case g.queue <- struct{}{}:
		defer func() { <-g.queue }()
	default:
		return false, rateLimitError{time.Second}
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-ctx.Done():
		return false, rateLimitError{time.Second}
	}
	exists := hash != "" && len(secret) <= MaxPassword
	if !exists {
		hash = nobodys(cost)
	}
	tried := []byte(secret)[:min(len(secret), MaxPassword)]
	right := g.matches([]byte(hash), tried) == nil && exists
	// Each step of the cost takes as long as all smaller steps together. The loop brings a cheaper hash up to cost,
	// so that the duration does not reveal the cost of the user's hash.
	for step := costOf(hash); step < cost && !right; step++ {
		_ = g.matches([]byte(nobodys(step)), tried)
	}
	return right, nil
}

// nobodys returns a hash of the given cost for which no password is known.
func nobodys(cost int) string {
	return fmt.Sprintf("$2a$%02d$%s", cost, "abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234")[:60]
}

// report logs the number of wrong passwords, at most once a minute and without names or secrets.
func (g *guard) report(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused++
	if now := g.clock.Now(); now.Sub(g.reported) >= reportInterval {
		klog.FromContext(ctx).Error(nil, "Rejected passwords or secrets", "requests", g.refused)
		g.reported, g.refused = now, 0
	}
}

// mayReport reports whether another error may be logged; it does so at most once a minute.
func (g *guard) mayReport() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	if now.Sub(g.failed) < reportInterval {
		return false
	}
	g.failed = now
	return true
}

// address returns the client's address without the port. All addresses of an IPv6 /64 network count as one, because a
// client usually controls the whole network.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is6() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}

func digest(parts ...string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	h.Sum(sum[:0])
	return sum
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
