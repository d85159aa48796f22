package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/identity/certs"
)

// fakeHost is a host in memory. It rejects writes that are based on an older state.
type fakeHost struct {
	mu       sync.Mutex
	version  int
	stored   *corev1.Secret
	services map[string]*apiService
	// refuse contains the error of each call, by name.
	refuse map[string]error
	// idle means that the workload has no replicas.
	idle bool
	// changed is called with each stored Secret.
	changed func(*corev1.Secret)
}

func newHost(services ...string) *fakeHost {
	h := &fakeHost{stored: &corev1.Secret{}, services: map[string]*apiService{}, refuse: map[string]error{}, changed: func(*corev1.Secret) {}}
	h.stored.Name, h.stored.ResourceVersion = "shop-serving", "0"
	for _, name := range services {
		h.services[name] = &apiService{name: name, resourceVersion: "0", service: ours}
	}
	return h
}

func (h *fakeHost) next() string {
	h.version++
	return strconv.Itoa(h.version)
}

func (h *fakeHost) secret(context.Context) (*corev1.Secret, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stored.DeepCopy(), h.refuse["secret"]
}

func (h *fakeHost) updateSecret(_ context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refuse["updateSecret"]; err != nil {
		return nil, err
	}
	if secret.ResourceVersion != h.stored.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, secret.Name, errors.New("changed"))
	}
	h.stored = secret.DeepCopy()
	h.stored.ResourceVersion = h.next()
	h.changed(h.stored.DeepCopy())
	return h.stored.DeepCopy(), nil
}

func (h *fakeHost) apiService(_ context.Context, name string) (*apiService, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	service, ok := h.services[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "apiservices"}, name)
	}
	copied := *service
	return &copied, h.refuse["apiService"]
}

func (h *fakeHost) updateAPIService(_ context.Context, service *apiService) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refuse["updateAPIService"]; err != nil {
		return err
	}
	if service.resourceVersion != h.services[service.name].resourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "apiservices"}, service.name, errors.New("changed"))
	}
	changed := *service
	changed.insecure, changed.resourceVersion = false, h.next()
	h.services[service.name] = &changed
	return nil
}

func (h *fakeHost) unwanted(context.Context) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.idle, h.refuse["unwanted"]
}

func (h *fakeHost) run(ctx context.Context, k *Keeper, ready func() error) error {
	k.lead(ctx, ready)
	return nil
}

func (h *fakeHost) bundle(name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.services[name].bundle
}

// edit modifies the stored objects as another writer.
func (h *fakeHost) edit(change func(secret *corev1.Secret, services map[string]*apiService)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.stored, h.services)
	h.stored.ResourceVersion = h.next()
	for _, service := range h.services {
		service.resourceVersion = h.next()
	}
	h.changed(h.stored.DeepCopy())
}

var ours = service{"shops", "shop", 443}

var services = []string{"v1.shop.example.com", "v1beta1.shop.example.com"}

func options(lifetime time.Duration) Options {
	return Options{
		DNSNames: []string{"shop.shops.svc", "shop.shops.svc.cluster.local"}, Lifetime: lifetime,
		APIServices: services, ServiceName: "shop", ServiceNamespace: "shops",
	}
}

func keeper(t *testing.T, host host, o Options) *Keeper {
	t.Helper()
	k, err := newKeeper(o, host)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// verify verifies the certificate with a bundle, as a kube-apiserver does.
func verify(k *Keeper, bundle []byte, at time.Time) error {
	_, err := verified(k, bundle, at)
	return err
}

// verified also returns until when the result is the same.
func verified(k *Keeper, bundle []byte, at time.Time) (until time.Time, err error) {
	cert, key := k.CurrentCertKeyContent()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return at, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	chains, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "shop.shops.svc", CurrentTime: at})
	if err != nil {
		return at, err
	}
	until = pair.Leaf.NotAfter
	for _, c := range chains[0] {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return until, nil
}

// There are three replicas, of which a changing one leads, or none; and three kube-apiservers, which notice changes
// with different delays. In two hours with certificates that live for 30 seconds, every kube-apiserver must accept
// every certificate that a replica serves.
func TestKeeper_everyHostTrustsEveryReplica(t *testing.T) {
	if testing.Short() {
		t.Skip("two hours of certificates that live for 30 seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		const lifetime = 30 * time.Second
		random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))) // synctest's clock makes it deterministic
		var drawing sync.Mutex
		below := func(n int) int {
			drawing.Lock()
			defer drawing.Unlock()
			return random.IntN(n)
		}
		host := newHost(services...)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()

		replicas := make([]*Keeper, 3)
		for i := range replicas {
			replicas[i] = keeper(t, host, options(lifetime))
		}
		var seen sync.Mutex
		secrets := []*corev1.Secret{host.stored}
		host.changed = func(s *corev1.Secret) {
			seen.Lock()
			defer seen.Unlock()
			secrets = append(secrets, s)
		}
		for _, k := range replicas {
			running.Go(func() { // a delayed watch
				for at := 0; ctx.Err() == nil; {
					seen.Lock()
					all := secrets
					seen.Unlock()
					if at < len(all) {
						k.follow(all[at])
						at++
						continue
					}
					pause(ctx, time.Duration(below(1000))*time.Millisecond)
				}
			})
		}
		running.Go(func() { // the lead
			for ctx.Err() == nil {
				leading, stop := context.WithTimeout(ctx, time.Duration(below(20000))*time.Millisecond)
				replicas[below(len(replicas))].lead(leading, always)
				stop()
				pause(ctx, time.Duration(below(4000))*time.Millisecond)
			}
		})

		// The hosts' bundles, by host and service. Noticing takes at most a tenth of the lifetime.
		type at struct{ host, service int }
		bundles := map[at][]byte{}
		authorities, certificates := map[string]bool{}, map[string]bool{}
		believed := map[string]time.Time{} // by certificate and bundle
		for step := range 4 * 7200 {
			pause(ctx, 250*time.Millisecond)
			for h := range 3 {
				for s, name := range services {
					if step%(4*(h+1)-1) == 0 { // every 0.75, 1.75 and 2.75 seconds
						bundles[at{h, s}] = host.bundle(name)
					}
					if step < 4*30 {
						continue // until every host has the first authority
					}
					for i, k := range replicas {
						cert, _ := k.CurrentCertKeyContent()
						certificates[string(cert)] = true
						pair := string(cert) + string(bundles[at{h, s}])
						if time.Now().Before(believed[pair]) {
							continue
						}
						until, err := verified(k, bundles[at{h, s}], time.Now())
						if err != nil {
							t.Fatalf("after %d steps, kube-apiserver %d does not believe replica %d of %s: %v", step, h, i, name, err)
						}
						believed[pair] = until
					}
					authorities[string(bundles[at{h, s}])] = true
				}
			}
		}
		t.Logf("2 hours: %d bundles, %d serving certificates", len(authorities), len(certificates))
		if len(authorities) < 50 || len(certificates) < 200 {
			t.Errorf("only %d bundles and %d serving certificates were in use", len(authorities), len(certificates))
		}
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// always is the readiness of a server that is always ready.
func always() error { return nil }

// step performs one step of the leader of a ready server, and expects no error.
func step(t *testing.T, k *Keeper) {
	t.Helper()
	stepWhile(t, k, always)
}

func stepWhile(t *testing.T, k *Keeper, ready func() error) {
	t.Helper()
	if _, err := k.renew(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
}

// However late an authority is published, and by whichever leader, hosts must have time to notice it before it signs.
func TestRenew_latePublication_waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lifetime = time.Hour
		host := newHost(services...)
		first, second := keeper(t, host, options(lifetime)), keeper(t, host, options(lifetime))
		time.Sleep(999 * time.Millisecond) // the times in a certificate are whole seconds
		step(t, first)
		for range 15 { // until almost a third of the authority's lifetime is left
			time.Sleep(10 * time.Minute)
			step(t, first)
		}
		time.Sleep(10 * time.Minute)
		host.refuse["updateAPIService"] = errors.New("no")
		if _, err := first.renew(t.Context(), always); err == nil {
			t.Fatal("the bundles are not refused")
		}
		for at := time.Duration(0); at < 10*time.Minute; at += time.Second {
			if at == 5*time.Minute {
				delete(host.refuse, "updateAPIService")
			}
			before := host.bundle(services[0])
			_, err := second.renew(t.Context(), always)
			if refused := at < 5*time.Minute; refused != (err != nil) {
				t.Fatalf("after %v: %v", at, err)
			}
			changed := string(before) != string(host.bundle(services[0]))
			if changed != (at == 5*time.Minute) {
				t.Errorf("after %v, the bundle changed: %v", at, changed)
			}
			state, err := read(host.stored)
			if err != nil {
				t.Fatal(err)
			}
			signed := state.serving.CheckSignatureFrom(state.newest()) == nil
			if want := at >= 5*time.Minute+maxNotice; signed != want {
				t.Fatalf("after %v, the new authority has signed: %v", at, signed)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestRenew_invalidPublicationTime(t *testing.T) {
	for name, spoilt := range map[string]func() string{
		"empty":         func() string { return "" },
		"no time":       func() string { return "yesterday" },
		"of the future": func() string { return time.Now().Add(time.Hour).Format(time.RFC3339) },
		"of the past":   func() string { return time.Now().Add(-time.Hour).Format(time.RFC3339) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := newHost(services...)
				k := keeper(t, host, options(time.Hour))
				step(t, k)
				host.edit(func(secret *corev1.Secret, _ map[string]*apiService) {
					secret.Data[publishedAt] = []byte(spoilt())
				})
				time.Sleep(time.Second)
				step(t, k)
				if got := string(host.stored.Data[publishedAt]); got != time.Now().UTC().Format(time.RFC3339Nano) {
					t.Errorf("published at %q", got)
				}
			})
		})
	}
}

func TestRenew_upToDate_writesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		k := keeper(t, host, options(time.Hour))
		if err := k.Check(); !errors.Is(err, errNotRead) {
			t.Errorf("before: %v", err)
		}
		step(t, k)
		if err := k.Check(); err != nil {
			t.Errorf("after: %v", err)
		}
		written := host.version
		for range 30 {
			time.Sleep(time.Minute)
			step(t, k)
		}
		if host.version != written {
			t.Errorf("%d writes in the first half of the life", host.version-written)
		}
		if err := verify(k, host.bundle(services[0]), time.Now()); err != nil {
			t.Error(err)
		}
	})
}

func TestPublish_changedBundle_isRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		k := keeper(t, host, options(time.Hour))
		step(t, k)
		want := host.bundle(services[0])
		stranger, _, err := certs.NewAuthority(time.Now(), "stranger", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(*apiService){
			"another authority": func(s *apiService) { s.bundle = stranger },
			"no text":           func(s *apiService) { s.bundle = []byte("nothing") },
			"empty":             func(s *apiService) { s.bundle = nil },
			"no verification":   func(s *apiService) { s.bundle, s.insecure = nil, true },
		} {
			host.edit(func(_ *corev1.Secret, services map[string]*apiService) { change(services["v1.shop.example.com"]) })
			step(t, k)
			if service := host.services[services[0]]; !bytes.Equal(service.bundle, want) || service.insecure {
				t.Errorf("%s: %q, insecure %v", name, service.bundle, service.insecure)
			}
		}
	})
}

func TestPublish_otherServer_isNotModified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		host.services[services[1]].service.Name = "rival"
		k := keeper(t, host, options(time.Hour))
		step(t, k)
		if host.bundle(services[1]) != nil || host.bundle(services[0]) == nil {
			t.Error("the bundle went to the wrong APIService")
		}
		if !strings.Contains(k.said[services[1]], "points to the service shops/rival:443, not to shops/shop") {
			t.Errorf("said %q", k.said)
		}
		// It points to this server again.
		host.edit(func(_ *corev1.Secret, all map[string]*apiService) { all[services[1]].service.Name = "shop" })
		step(t, k)
		if host.bundle(services[1]) == nil || k.said[services[1]] != "" {
			t.Errorf("no bundle, or said %q", k.said)
		}
	})
}

func TestPublish_newAPIService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost()
		k := keeper(t, host, options(time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		var leading sync.WaitGroup
		leading.Go(func() { k.lead(ctx, always) })
		time.Sleep(time.Minute)
		host.edit(func(_ *corev1.Secret, all map[string]*apiService) {
			for _, name := range services {
				all[name] = &apiService{name: name, service: ours}
			}
		})
		time.Sleep(2 * missingInterval)
		for _, name := range services {
			if err := verify(k, host.bundle(name), time.Now()); err != nil {
				t.Error(err)
			}
		}
		cancel()
		leading.Wait()
	})
}

// If the Secret is emptied, made invalid or recreated, no request may fail: the certificate stays in use until
// another authority is trusted.
func TestRenew_lostSecret_isRestored(t *testing.T) {
	for name, spoil := range map[string]func(*corev1.Secret){
		"emptied":         func(s *corev1.Secret) { s.Data = nil },
		"without a key":   func(s *corev1.Secret) { delete(s.Data, authorityKey) },
		"spoilt":          func(s *corev1.Secret) { s.Data[servingCert], s.Data[authorityCert] = []byte("x"), []byte("y") },
		"keys exchanged":  func(s *corev1.Secret) { s.Data[authorityKey] = s.Data[servingKey] },
		"without serving": func(s *corev1.Secret) { delete(s.Data, servingCert) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := newHost(services...)
				k := keeper(t, host, options(time.Hour))
				host.changed = k.follow
				step(t, k)
				old := host.bundle(services[0])
				host.edit(func(s *corev1.Secret, _ map[string]*apiService) { spoil(s) })
				for range 30 {
					step(t, k)
					if err := verify(k, old, time.Now()); err != nil && bytes.Equal(old, host.bundle(services[0])) {
						t.Fatal(err)
					}
					if err := verify(k, host.bundle(services[0]), time.Now()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Second)
				}
				if err := k.Check(); err != nil {
					t.Error(err)
				}
				if s, err := read(host.stored); err != nil || s.key == nil || s.serving == nil {
					t.Errorf("the Secret still lacks something: %v", err)
				}
			})
		})
	}
}

func TestRenew_missingDNSName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		step(t, keeper(t, host, options(time.Hour)))
		o := options(time.Hour)
		o.DNSNames = append(o.DNSNames, "shop.example.com")
		k := keeper(t, host, o)
		time.Sleep(k.notice())
		step(t, k)
		cert, key := k.CurrentCertKeyContent()
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Leaf.VerifyHostname("shop.example.com"); err != nil {
			t.Error(err)
		}
	})
}

func TestLead_forbiddenWrite_isReported(t *testing.T) {
	forbidden := apierrors.NewForbidden(
		schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"},
		services[0],
		errors.New("no"),
	)
	for call, want := range map[string]string{
		"secret":           "read the Secret of the serving certificate",
		"updateSecret":     "write the Secret of the serving certificate",
		"apiService":       "read the APIService v1.shop.example.com",
		"updateAPIService": "write the caBundle of the APIService v1.shop.example.com",
	} {
		synctest.Test(t, func(t *testing.T) {
			host := newHost(services...)
			host.refuse[call] = forbidden
			k := keeper(t, host, options(time.Hour))
			ctx, cancel := context.WithCancel(t.Context())
			var leading sync.WaitGroup
			leading.Go(func() { k.lead(ctx, always) })
			synctest.Wait()
			k.become(nil) // other replicas can read the Secret
			if err := k.Check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", call, err)
			}
			host.mu.Lock()
			delete(host.refuse, call)
			host.mu.Unlock()
			time.Sleep(checkInterval)
			synctest.Wait()
			if err := k.Check(); err != nil {
				t.Errorf("%s, allowed again: %v", call, err)
			}
			cancel()
			leading.Wait()
		})
	}
}

// For a moment, two replicas may both act as leader.
func TestRenew_twoLeaders_conflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		a, b := keeper(t, host, options(time.Hour)), keeper(t, host, options(time.Hour))
		late, err := host.secret(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		step(t, a)
		s := &state{}
		if err := s.newAuthority(time.Now(), "late", time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := b.store(t.Context(), late, s); !apierrors.IsConflict(errors.Unwrap(err)) {
			t.Errorf("the second one wrote: %v", err)
		}
		step(t, b)
		cert, _ := a.CurrentCertKeyContent()
		if other, _ := b.CurrentCertKeyContent(); !bytes.Equal(cert, other) {
			// b would follow by its watch, which this test does not have.
			b.follow(host.stored)
			if other, _ := b.CurrentCertKeyContent(); !bytes.Equal(cert, other) {
				t.Error("the two serve different certificates")
			}
		}
	})
}

type heard struct{ n int }

func (h *heard) Enqueue() { h.n++ }

func TestAddListener_notifiesOncePerCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		k := keeper(t, host, options(time.Hour))
		var h heard
		k.AddListener(&h)
		host.changed = k.follow
		step(t, k)
		k.follow(host.stored)
		if h.n != 1 {
			t.Errorf("heard %d times", h.n)
		}
		before, _ := k.CurrentCertKeyContent()
		k.follow(&corev1.Secret{Data: map[string][]byte{servingCert: []byte("x"), servingKey: []byte("y")}})
		if after, _ := k.CurrentCertKeyContent(); !bytes.Equal(before, after) || h.n != 1 {
			t.Error("a certificate that cannot be read is served")
		}
		if err := k.Check(); err == nil || !strings.Contains(fmt.Sprint(err), "has no valid serving certificate") {
			t.Errorf("said %v", err)
		}
	})
}

func TestLeave_onlyWhenUnwanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(services...)
		host.services[services[1]].service.Name = "rival"
		ready := errors.New("not yet")
		k := keeper(t, host, options(time.Hour))
		step := func() {
			t.Helper()
			stepWhile(t, k, func() error { return ready })
		}
		step()
		before := *host.services[services[0]]
		leave := func() {
			t.Helper()
			if err := k.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		leave() // a restart
		if host.services[services[0]].service != ours {
			t.Error("a server that restarts left")
		}
		host.idle = true
		leave()
		leave()
		if got := host.services[services[0]]; got.service != (service{}) || got.left != ours || got.bundle != nil {
			t.Errorf("left behind: %+v", got)
		}
		if got := host.services[services[1]]; got.service.Name != "rival" {
			t.Errorf("another server's: %+v", got)
		}
		// A replica that still runs does not add the server again, nor does a new one before it is ready.
		step()
		host.idle = false
		step()
		if host.services[services[0]].service == ours {
			t.Error("came back too early")
		}
		ready = nil
		step()
		got := host.services[services[0]]
		if got.service != ours || got.left != (service{}) || !bytes.Equal(got.bundle, before.bundle) {
			t.Errorf("came back as %+v", got)
		}
		host.edit(func(_ *corev1.Secret, all map[string]*apiService) { all[services[0]].service = service{} })
		step()
		if host.services[services[0]].service == ours {
			t.Error("took an APIService that points nowhere for its own")
		}
	})
}

func TestParseService(t *testing.T) {
	for text, want := range map[string]service{"": {}, ours.String(): ours, "shop:443": {}, "a/b": {}, "a/b:x": {}, "a/b:65536": {}} {
		got, err := parseService(text)
		if got != want || (err == nil) != (want != service{} || text == "") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
