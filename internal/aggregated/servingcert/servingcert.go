// Package servingcert maintains the serving certificate of an aggregated server. The host, which is the
// kube-apiserver in front, verifies it by the authorities in the APIServices. This package issues both, renews them
// in time, and needs no manual steps.
//
// # Storage
//
// A Secret in the server's namespace contains the data that all replicas share: tls.crt and tls.key, the serving
// certificate; ca.crt, the authorities that the cluster has to trust, newest first; and ca.key, the key of the
// newest. All replicas follow the Secret. The replica that holds a Lease also renews its content, and keeps the
// caBundle of the APIServices equal to ca.crt, reverting changes of other writers.
//
// # Replacement of an authority
//
// The next authority is created, with a new key, when a third of the lifetime of the last one is left. At first it is
// only added to ca.crt, and so to the APIServices, beside the previous one. When all APIServices contain it, the time
// is recorded in the Secret (ca.published). When the hosts have had time to notice, it signs the next serving
// certificate. The previous authority stays until it expires. So any serving certificate that a replica still uses is
// verified by any bundle that a host still uses.
//
// # Leaving the APIServices
//
// While an APIService points to a server that does not respond, its host completes no deletion of a namespace,
// because it cannot determine the remaining content. That is correct while the server restarts, but wrong when the
// server is no longer supposed to run: when its workload was scaled to zero or deleted, or its namespace was deleted.
// In this case, a stopping server removes itself from the APIServices. They stay, without a service, and with an
// annotation that names the server. The next server that starts adds itself again.
package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/identity/certs"
)

// Keys of the Secret.
const (
	servingCert   = corev1.TLSCertKey
	servingKey    = corev1.TLSPrivateKeyKey
	authorityCert = "ca.crt"
	authorityKey  = "ca.key"
	// publishedAt is when all APIServices had the newest authority, in RFC 3339.
	publishedAt = "ca.published"
)

const (
	// authorityLives is the ratio of an authority's lifetime to that of its certificates.
	authorityLives = 4
	// maxNotice bounds the time in which hosts notice an authority.
	maxNotice = time.Minute
	// checkInterval is the maximum delay until another writer's change of the APIServices is noticed. The server does
	// not require the permission to watch them.
	checkInterval = 10 * time.Second
	// missingInterval is the maximum delay until a new APIService is noticed.
	missingInterval = time.Second
)

// Options configure a Keeper.
type Options struct {
	// DNSNames are the names in the certificate, SERVICE.NAMESPACE.svc first.
	DNSNames []string
	// APIServices are the APIServices whose caBundle is maintained, if they point to the service ServiceName in
	// ServiceNamespace. An APIService that points elsewhere is not modified.
	APIServices                   []string
	ServiceName, ServiceNamespace string
	// Lifetime is the lifetime of a serving certificate. The certificate is renewed when a third is left.
	Lifetime time.Duration
	// Clock is the clock; nil means the real clock.
	Clock clock.Clock
}

// host stores the Secret, the Lease and the APIServices. Errors are API statuses.
type host interface {
	// secret and updateSecret read and write the Secret. An update that is based on an older version is a conflict.
	secret(ctx context.Context) (*corev1.Secret, error)
	updateSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	// apiService and updateAPIService read and write an APIService. An update that is based on an older version is a
	// conflict.
	apiService(ctx context.Context, name string) (*apiService, error)
	updateAPIService(ctx context.Context, service *apiService) error
	// unwanted reports whether the server is no longer supposed to run: its workload is scaled to zero or deleted, or
	// its namespace is deleted.
	unwanted(ctx context.Context) (bool, error)
	// run calls follow whenever the Secret has changed, and lead while this replica holds the Lease.
	run(ctx context.Context, k *Keeper, ready func() error) error
}

// apiService contains the relevant fields of an APIService.
type apiService struct {
	name, resourceVersion string
	// service is empty if the APIService points nowhere; left is then the service that it pointed to before.
	service, left service
	insecure      bool
	bundle        []byte
}

// service is the service of an APIService.
type service struct {
	Namespace, Name string
	Port            int32
}

func (s service) String() string { return fmt.Sprintf("%s/%s:%d", s.Namespace, s.Name, s.Port) }

// is reports whether s is the server's service, with any port.
func (s service) is(o Options) bool {
	return s.Namespace == o.ServiceNamespace && s.Name == o.ServiceName
}

// Keeper maintains the serving certificate of one replica. Its methods may be called concurrently.
type Keeper struct {
	options Options
	host    host
	serving atomic.Pointer[content]
	changed chan struct{}

	mu        sync.Mutex
	listeners []dynamiccertificates.Listener
	// status is the reason why the certificate differs from the Secret's; nil if it does not. refused is the error of
	// a leader's write that the host forbids.
	status, refused error
	// The last logged failure of each APIService, to log it once.
	said map[string]string

	// known is the leader's last state of the Secret. Only lead uses it.
	known state
}

// content is a serving certificate with its key.
type content struct{ cert, key []byte }

var _ dynamiccertificates.CertKeyContentProvider = (*Keeper)(nil)

// errNotRead is the status before the Secret has been read for the first time.
var errNotRead = errors.New("the serving certificate has not been read from the cluster yet")

// newKeeper returns a keeper that serves a temporary certificate until it has read the Secret. No client trusts it,
// but kubelet's probes work, since they do not verify.
func newKeeper(options Options, host host) (*Keeper, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	cert, key, err := certs.NewServing(options.Clock.Now(), options.DNSNames, 24*time.Hour, nil, nil)
	if err != nil {
		return nil, err
	}
	k := &Keeper{options: options, host: host, status: errNotRead, said: map[string]string{}, changed: make(chan struct{}, 1)}
	k.serving.Store(&content{cert, key})
	return k, nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (k *Keeper) Name() string { return "serving certificate of " + k.options.DNSNames[0] }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (k *Keeper) CurrentCertKeyContent() (cert, key []byte) {
	current := k.serving.Load()
	return current.cert, current.key
}

// AddListener implements dynamiccertificates.Notifier.
func (k *Keeper) AddListener(listener dynamiccertificates.Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, listener)
}

// Check returns the reason why the cluster does not trust this replica's certificate; nil if it does.
func (k *Keeper) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status != nil {
		return k.status
	}
	return k.refused
}

// follow loads the content of the Secret.
func (k *Keeper) follow(secret *corev1.Secret) {
	await.Notify(k.changed)
	cert, key := secret.Data[servingCert], secret.Data[servingKey]
	if len(cert) == 0 && len(key) == 0 {
		return // newly created
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		k.become(fmt.Errorf("the Secret %s has no valid serving certificate: %w", secret.Name, err))
		return
	}
	current := k.serving.Load()
	k.become(nil)
	if bytes.Equal(current.cert, cert) && bytes.Equal(current.key, key) {
		return
	}
	k.serving.Store(&content{cert, key})
	k.mu.Lock()
	listeners := slices.Clone(k.listeners)
	k.mu.Unlock()
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// become sets the status.
func (k *Keeper) become(status error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
}

// refuse sets the error of forbidden writes of this replica; nil if there is none.
func (k *Keeper) refuse(reason error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused = reason
}

// lead renews and publishes until the context ends.
func (k *Keeper) lead(ctx context.Context, ready func() error) {
	defer k.refuse(nil)
	for {
		wait, err := k.renew(ctx, ready)
		if apierrors.IsForbidden(err) {
			k.refuse(err)
		} else {
			k.refuse(nil)
		}
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsConflict(err):
			// Another writer was faster; read again.
		case err != nil:
			k.say(ctx, "", err.Error())
		default:
			k.say(ctx, "", "")
		}
		timer := k.options.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-k.changed:
			timer.Stop()
		}
	}
}

// Each failure of an APIService, or of another part, is logged once, and so is its end. An empty text in wrong is no
// failure.
func (k *Keeper) say(ctx context.Context, about, wrong string) {
	k.mu.Lock()
	before := k.said[about]
	k.said[about] = wrong
	k.mu.Unlock()
	switch logger := klog.FromContext(ctx); {
	case wrong == before:
	case wrong != "":
		logger.Error(nil, "Failed to update the serving certificate", "about", about, "reason", wrong)
	default:
		logger.Info("The serving certificate is up to date again", "about", about)
	}
}

// renew performs one step, and returns the maximum time until the next one.
func (k *Keeper) renew(ctx context.Context, ready func() error) (time.Duration, error) {
	wait := min(checkInterval, k.notice())
	secret, err := k.host.secret(ctx)
	if err != nil {
		return wait, fmt.Errorf("read the Secret of the serving certificate: %w", err)
	}
	now := k.options.Clock.Now()
	state, err := read(secret)
	if err != nil {
		// Invalid parts are replaced. The valid authorities stay in the caBundle.
		k.say(ctx, secret.Name, err.Error())
	}
	spoilt := state.remember(now, &k.known) || err != nil
	if state.renewAuthority(now, k.authorityLife()) {
		if err := state.newAuthority(now, k.options.DNSNames[0], k.authorityLife()); err != nil {
			return wait, err
		}
		klog.FromContext(ctx).Info("Created a new certificate authority for the serving certificate", "until", state.newest().NotAfter)
		spoilt = true
	}
	if spoilt {
		if secret, err = k.store(ctx, secret, state); err != nil {
			return wait, err
		}
	}
	k.known = *state
	all, missing, err := k.publish(ctx, state, ready)
	if missing {
		wait = min(wait, missingInterval)
	}
	now = k.options.Clock.Now()
	// The waiting time begins with the publication, not with the creation: the publication may have been refused for
	// long, or left to the next leader.
	fresh := all && !state.isPublished(now)
	if fresh {
		state.published = now
	}
	ripe := all && now.Sub(state.published) >= k.notice()
	renew := state.renewServing(now, k.options, ripe)
	if renew {
		if err := state.newServing(now, k.options); err != nil {
			return wait, err
		}
	}
	if fresh || renew {
		if _, err := k.store(ctx, secret, state); err != nil {
			return wait, err
		}
		k.known = *state
	}
	if renew {
		klog.FromContext(ctx).Info("A new serving certificate", "names", k.options.DNSNames, "until", state.serving.NotAfter)
	}
	return wait, err
}

func (k *Keeper) authorityLife() time.Duration { return authorityLives * k.options.Lifetime }

// notice is the time in which hosts notice an authority.
func (k *Keeper) notice() time.Duration { return min(maxNotice, k.options.Lifetime/10) }

func (k *Keeper) store(ctx context.Context, secret *corev1.Secret, state *state) (*corev1.Secret, error) {
	changed := secret.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string][]byte{}
	}
	state.write(changed.Data)
	stored, err := k.host.updateSecret(ctx, changed)
	if err != nil {
		return nil, fmt.Errorf("write the Secret of the serving certificate: %w", err)
	}
	k.follow(stored)
	return stored, nil
}

// publish writes the authorities into the caBundle of all APIServices of this server, and reports whether all of them
// have it. An APIService that does not exist yet is not counted.
func (k *Keeper) publish(ctx context.Context, state *state, ready func() error) (all, missing bool, err error) {
	bundle := state.bundle()
	all = true
	fail := func(doing, name string, failure error) {
		all, err = false, errors.Join(err, fmt.Errorf("%s the APIService %s: %w", doing, name, failure))
	}
	for _, name := range k.options.APIServices {
		found, failure := k.host.apiService(ctx, name)
		if apierrors.IsNotFound(failure) {
			missing = true
			continue
		}
		if failure != nil {
			fail("read", name, failure)
			continue
		}
		back, failure := k.goesBack(ctx, found, ready)
		if failure != nil {
			fail("go back to", name, failure)
			continue
		}
		switch {
		case back:
			found.service, found.left = found.left, service{}
			klog.FromContext(ctx).Info("Restored the APIService of the server", "apiservice", name)
		case !found.service.is(k.options):
			k.say(ctx, name, fmt.Sprintf("the APIService points to the service %s, not to %s/%s: it belongs to another server, and its "+
				"caBundle is not changed",
				found.service, k.options.ServiceNamespace, k.options.ServiceName))
			missing = missing || found.left.is(k.options)
			continue
		case bytes.Equal(found.bundle, bundle) && !found.insecure:
			k.say(ctx, name, "")
			continue
		case found.insecure || len(found.bundle) > 0 && !state.knows(found.bundle):
			klog.FromContext(ctx).
				Error(nil, "Another client changed the caBundle of the APIService, restored it", "apiservice", name, "insecureSkipTLSVerify",
					found.insecure)
		}
		k.say(ctx, name, "")
		found.bundle = bundle
		if failure := k.host.updateAPIService(ctx, found); failure != nil {
			fail("write the caBundle of", name, failure)
		}
	}
	return all, missing, err
}

// goesBack reports whether an APIService that the server has left should point to it again.
func (k *Keeper) goesBack(ctx context.Context, found *apiService, ready func() error) (bool, error) {
	if found.service != (service{}) || !found.left.is(k.options) || ready() != nil {
		return false, nil
	}
	unwanted, err := k.host.unwanted(ctx)
	return !unwanted, err
}

// leaveAttempts is the number of attempts to update an APIService that others write at the same time.
const leaveAttempts = 5

// Leave removes the server from its APIServices if it is no longer supposed to run. It is for a server that is about to
// stop. Run need not have returned: of two writes, the one with the older state is a conflict.
func (k *Keeper) Leave(ctx context.Context) error {
	unwanted, err := k.host.unwanted(ctx)
	if err != nil {
		return fmt.Errorf("read the replicas of the server: %w", err)
	}
	if !unwanted {
		return nil
	}
	for _, name := range k.options.APIServices {
		err = errors.Join(err, k.leave(ctx, name))
	}
	return err
}

func (k *Keeper) leave(ctx context.Context, name string) error {
	var err error
	for range leaveAttempts {
		var found *apiService
		if found, err = k.host.apiService(ctx, name); err != nil || !found.service.is(k.options) {
			break
		}
		found.service, found.left, found.bundle, found.insecure = service{}, found.service, nil, false
		if err = k.host.updateAPIService(ctx, found); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("leave the APIService %s: %w", name, err)
	}
	return nil
}

// state is the content of the Secret.
type state struct {
	// authorities are sorted, the newest first. key belongs to the first one.
	authorities []*x509.Certificate
	key         []byte
	// published is when all APIServices had an authority; see isPublished.
	published time.Time
	serving   *x509.Certificate
	content   content
}

// read returns the valid parts of the Secret, and an error about the others.
func read(secret *corev1.Secret) (*state, error) {
	s := &state{}
	var problems []error
	for rest := secret.Data[authorityCert]; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if authority, err := x509.ParseCertificate(block.Bytes); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", authorityCert, err))
		} else {
			s.authorities = append(s.authorities, authority)
		}
	}
	if len(s.authorities) > 0 {
		if _, err := tls.X509KeyPair(encode(s.authorities[0]), secret.Data[authorityKey]); err != nil {
			problems = append(problems, fmt.Errorf("%s is not the key of %s: %w", authorityKey, authorityCert, err))
		} else {
			s.key = secret.Data[authorityKey]
		}
	}
	// An invalid time counts as missing: the authority is then published again.
	s.published, _ = time.Parse(time.RFC3339Nano, string(secret.Data[publishedAt]))
	if cert, key := secret.Data[servingCert], secret.Data[servingKey]; len(cert) > 0 || len(key) > 0 {
		if pair, err := tls.X509KeyPair(cert, key); err != nil {
			problems = append(problems, fmt.Errorf("%s and %s: %w", servingCert, servingKey, err))
		} else {
			s.serving, s.content = pair.Leaf, content{cert, key}
		}
	}
	return s, errors.Join(problems...)
}

// remember restores parts that another writer has removed from the Secret or made invalid: certificates stay in use
// until their replacements are trusted. The authority's key is not restored. It reports whether it has restored a
// part.
func (s *state) remember(now time.Time, known *state) (added bool) {
	if len(s.authorities) == 0 && len(known.authorities) > 0 {
		s.authorities, added = slices.Clone(known.authorities), true
	}
	if s.serving == nil && known.serving != nil && now.Before(known.serving.NotAfter) {
		s.serving, s.content, added = known.serving, known.content, true
	}
	return added
}

func (s *state) write(data map[string][]byte) {
	data[authorityCert], data[authorityKey] = s.bundle(), s.key
	if !s.published.IsZero() {
		data[publishedAt] = []byte(s.published.UTC().Format(time.RFC3339Nano))
	}
	if s.serving != nil {
		data[servingCert], data[servingKey] = s.content.cert, s.content.key
	}
}

func (s *state) newest() *x509.Certificate { return s.authorities[0] }

// isPublished reports whether the published time belongs to the newest authority, and not to the previous one or to a
// wrong clock.
func (s *state) isPublished(now time.Time) bool {
	return !s.published.Before(madeAt(s.newest())) && !s.published.After(now)
}

// bundle returns the authorities that the cluster has to trust, in PEM.
func (s *state) bundle() []byte {
	var all []byte
	for _, authority := range s.authorities {
		all = append(all, encode(authority)...)
	}
	return all
}

// knows reports whether a bundle contains only authorities of this server.
func (s *state) knows(bundle []byte) bool {
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return true
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil ||
			!slices.ContainsFunc(s.authorities, func(a *x509.Certificate) bool { return a.Subject.String() == cert.Subject.String() }) {
			return false
		}
	}
}

func (s *state) renewAuthority(now time.Time, life time.Duration) bool {
	return len(s.authorities) == 0 || s.key == nil || certs.Due(s.newest(), now, life)
}

// newAuthority adds a new authority before the others, and drops expired ones.
func (s *state) newAuthority(now time.Time, name string, life time.Duration) error {
	cert, key, err := certs.NewAuthority(now, name, life)
	if err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	block, _ := pem.Decode(cert)
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	s.authorities = slices.DeleteFunc(s.authorities, func(a *x509.Certificate) bool { return now.After(a.NotAfter) })
	s.authorities, s.key = slices.Insert(s.authorities, 0, authority), key
	return nil
}

// renewServing reports whether a new serving certificate is needed. The newest authority is ripe when hosts have had
// time to notice it. Before that, it signs only if there is no usable certificate at all.
func (s *state) renewServing(now time.Time, options Options, ripe bool) bool {
	switch {
	case s.serving == nil || now.After(s.serving.NotAfter):
		return true
	case !ripe:
		return false
	case s.serving.CheckSignatureFrom(s.newest()) != nil:
		return true
	}
	for _, name := range options.DNSNames {
		if s.serving.VerifyHostname(name) != nil {
			return true
		}
	}
	return certs.Due(s.serving, now, options.Lifetime)
}

func (s *state) newServing(now time.Time, options Options) error {
	cert, key, err := certs.NewServing(now, options.DNSNames, options.Lifetime, encode(s.newest()), s.key)
	if err != nil {
		return fmt.Errorf("make a serving certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("make a serving certificate: %w", err)
	}
	s.serving, s.content = pair.Leaf, content{cert, key}
	return nil
}

// madeAt returns the second in which a certificate was issued.
func madeAt(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(certs.Backdate) }

func encode(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}
