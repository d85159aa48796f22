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

// limit is how many passwords are free, and how long it takes for another one to be.
type limit struct {
	burst float64
	every time.Duration
}

// The limits are for a name from an address, for an address, and for a name from everywhere. By the
// last others could lock a user out: it is high, and not for addresses from which the user has signed in.
var (
	perNameAndAddress = limit{10, 30 * time.Second}
	perAddress        = limit{50, 2 * time.Second}
	perName           = limit{200, 5 * time.Second}
	// perRight is for those of a name that are right, which cost the processor as much.
	perRight = limit{60, time.Second}
)

const (
	// remembered is of how many names and addresses it is known how often they were wrong, and
	// familiar of how many that they were right, and for how long.
	remembered   = 16 << 10
	familiar     = 4 << 10
	familiarTime = 30 * 24 * time.Hour
	// maxWaiting is how many passwords may wait to be tried.
	maxWaiting = 32
	// reportInterval is how long the log is silent about further wrong passwords.
	reportInterval = time.Minute
)

// guard decides how often passwords may be tried, and tries them. The time does not tell whether
// there is a user, and the processors are left to others.
type guard struct {
	clock clock.PassiveClock
	slots chan struct{}
	queue chan struct{}
	// matches is bcrypt's, which takes as long as the hash says.
	matches func(hash, secret []byte) error

	mu       sync.Mutex
	buckets  *lru.Cache // *bucket by digest
	right    *lru.Cache // when it was, by digest of a name from an address
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

// tooMany is the error of who has to wait.
type tooMany struct{ after time.Duration }

func (e tooMany) Error() string {
	return fmt.Sprintf("too many attempts: try again in %d seconds", e.seconds())
}

func (e tooMany) seconds() int { return max(1, int(math.Ceil(e.after.Seconds()))) }

// try reports whether a secret is that of a hash; an empty hash is that of a user who does not exist,
// as costly as others. A disabled user's right secret counts as a wrong one. It returns tooMany if it has not been tried.
func (g *guard) try(r *http.Request, name, secret, hash string, disabled bool, cost int) (bool, error) {
	type limited struct {
		limit
		key [sha256.Size]byte
	}
	// What the address is refused for leaves no trace of the names, which would displace others.
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
			return false, tooMany{after}
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

// take takes one from what is free, or says how long it takes until there is one.
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

// remember keeps that a name was right from an address.
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

// compare tries a secret when a processor is to be had.
func (g *guard) compare(ctx context.Context, secret, hash string, cost int) (bool, error) {
	select {
	case g.queue <- struct{}{}:
		defer func() { <-g.queue }()
	default:
		return false, tooMany{time.Second}
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-ctx.Done():
		return false, tooMany{time.Second}
	}
	exists := hash != "" && len(secret) <= MaxPassword
	if !exists {
		hash = nobodys(cost)
	}
	tried := []byte(secret)[:min(len(secret), MaxPassword)]
	right := g.matches([]byte(hash), tried) == nil && exists
	// Each step of the cost takes as long as all before: a hash that costs less is not told by the time.
	for step := costOf(hash); step < cost && !right; step++ {
		_ = g.matches([]byte(nobodys(step)), tried)
	}
	return right, nil
}

// nobodys is a hash that no password is known of.
func nobodys(cost int) string {
	return fmt.Sprintf("$2a$%02d$%s", cost, "abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234")[:60]
}

// report logs wrong passwords at most once a minute, with their number and without what was tried.
func (g *guard) report(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused++
	if now := g.clock.Now(); now.Sub(g.reported) >= reportInterval {
		klog.FromContext(ctx).Error(nil, "Passwords or secrets were refused", "requests", g.refused)
		g.reported, g.refused = now, 0
	}
}

// mayReport says whether something else may be logged, at most once a minute.
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

// address is where a request comes from; a client has a whole network of IPv6.
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
