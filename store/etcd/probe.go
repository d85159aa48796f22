package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// connect waits until etcd answers. A read-only etcd is sufficient: the server starts, and is not ready.
func (b *Backend) connect(ctx context.Context) error {
	if b.options.StartTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.options.StartTimeout)
		defer cancel()
	}
	var (
		reason error
		log    = outage{logger: b.options.Logger}
	)
	for began := time.Now(); ; {
		err := b.read(ctx)
		if err == nil {
			close(b.connected)
			b.health = b.alarms(ctx)
			return nil
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		if final := (*finalError)(nil); errors.As(reason, &final) {
			return reason
		}
		if b.options.StartTimeout == 0 && ctx.Err() == nil {
			b.health = reason
			return nil
		}
		log.goesOn(reason)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; gave up after %v", reason, time.Since(began).Round(time.Millisecond))
		case <-time.After(b.options.HealthcheckTimeout / 4):
		}
	}
}

// probeUntil keeps health up to date.
func (b *Backend) probeUntil(ctx context.Context) {
	answered := sync.OnceFunc(func() {
		select {
		case <-b.connected:
		default:
			close(b.connected)
		}
	})
	log := outage{logger: b.options.Logger}
	if b.health != nil { // this goroutine is the only writer of health
		log.goesOn(b.health)
	}
	ticker := time.NewTicker(b.options.HealthcheckTimeout / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := b.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			answered()
			err = b.alarms(ctx)
		}
		b.mu.Lock()
		b.health = err
		b.mu.Unlock()
		if err != nil {
			log.goesOn(err)
		} else {
			log.ends()
		}
	}
}

// The time between two log lines about the same outage is at least outageNews, if there is a new reason, and at most
// outageRepeat.
const (
	outageNews   = 5 * time.Second
	outageRepeat = 30 * time.Second
)

// outage logs that etcd does not work: at once, when the reason changes, and at intervals as long as it lasts.
type outage struct {
	logger *slog.Logger
	began  time.Time // zero while etcd works
	logged time.Time
	reason string
}

func (o *outage) goesOn(reason error) {
	now := time.Now()
	if o.began.IsZero() {
		o.began = now
	}
	pause := outageNews
	if reason.Error() == o.reason {
		pause = outageRepeat
	}
	if !o.logged.IsZero() && now.Sub(o.logged) < pause {
		return
	}
	o.logged, o.reason = now, reason.Error()
	o.logger.Error("Waiting for etcd", "for", now.Sub(o.began).Round(time.Second), "reason", reason)
}

func (o *outage) ends() {
	if o.began.IsZero() {
		return
	}
	o.logger.Warn("etcd answers again", "after", time.Since(o.began).Round(time.Second))
	*o = outage{logger: o.logger}
}

// read reads a key, as upstream's health check does, and determines the reason if that fails. Each of the two takes
// at most HealthcheckTimeout.
func (b *Backend) read(ctx context.Context) error {
	reading, cancel := context.WithTimeout(ctx, b.options.HealthcheckTimeout)
	defer cancel()
	response, err := b.client.Get(reading, b.options.healthKey())
	if err == nil {
		b.seen(uint64(response.Header.Revision))
		return nil
	}
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd at %s: %w", b.endpoints(), err)
	}

	dialing, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.options.HealthcheckTimeout)
	defer cancel()
	broken := b.dialAll(dialing)
	if len(broken) == 0 {
		return fmt.Errorf("etcd at %s: accepts connections, but did not answer within %v: etcd has no quorum or is overloaded",
			b.endpoints(), b.options.HealthcheckTimeout)
	}
	var (
		reasons []string
		final   = len(broken) == len(b.options.Endpoints)
	)
	for _, broken := range broken {
		reasons = append(reasons, broken.endpoint+": "+advice(broken.err))
		final = final && hopeless(broken.err)
	}
	err = fmt.Errorf("etcd is not available: %s", strings.Join(reasons, "; "))
	if final {
		return &finalError{err}
	}
	return err
}

// alarms returns the reason why etcd accepts no writes although it can be read. It takes at most HealthcheckTimeout.
func (b *Backend) alarms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.options.HealthcheckTimeout)
	defer cancel()
	status, err := etcdserverpb.NewMaintenanceClient(b.client.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{})
	if err != nil {
		return nil // not every server with etcd's protocol has a status
	}
	b.size.Store(status.DbSize)
	for _, reported := range status.Errors {
		switch {
		case strings.Contains(reported, etcdserverpb.AlarmType_NOSPACE.String()):
			return fmt.Errorf(
				"etcd at %s: its database is full and it accepts no writes: compact and defragment it or raise its quota, then disarm the "+
					"alarm NOSPACE",
				b.endpoints(),
			)
		case strings.Contains(reported, etcdserverpb.AlarmType_CORRUPT.String()):
			return fmt.Errorf("etcd at %s: a member has raised the alarm CORRUPT, its data differs from the others'", b.endpoints())
		}
	}
	return nil
}

// finalError is an error that waiting does not cure.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// brokenEndpoint is an endpoint that could not be reached, or did not answer properly.
type brokenEndpoint struct {
	endpoint string
	err      error
}

// dialAll connects to every endpoint separately. The client does so too, but does not reveal the errors.
func (b *Backend) dialAll(ctx context.Context) []brokenEndpoint {
	errs := make([]error, len(b.options.Endpoints))
	var dials sync.WaitGroup
	for i, endpoint := range b.options.Endpoints {
		dials.Go(func() { errs[i] = b.dial(ctx, endpoint) })
	}
	dials.Wait()
	var broken []brokenEndpoint
	for i, err := range errs {
		if err != nil {
			broken = append(broken, brokenEndpoint{b.options.Endpoints[i], err})
		}
	}
	return broken
}

var (
	// http2Preface begins a connection, together with an empty frame of settings.
	http2Preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")

	errWantsTLS = errors.New("the endpoint requires TLS: use https://")
	errNoTLS    = errors.New("the endpoint does not use TLS: it may require http://")
	errNoEtcd   = errors.New("the endpoint does not use etcd's protocol: check that the port is the client port")
)

func (b *Backend) dial(ctx context.Context, endpoint string) error {
	u, err := parseEndpoint(endpoint)
	if err != nil {
		return err
	}
	network, address := "tcp", u.Host
	if u.Scheme == "unix" {
		network, address = "unix", strings.TrimPrefix(endpoint, "unix://")
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := connection.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if u.Scheme == "https" {
		config, err := b.options.tlsConfig()
		if err != nil {
			return err
		}
		config.ServerName, config.NextProtos = u.Hostname(), []string{"h2"}
		secured := tls.Client(connection, config)
		if err := secured.HandshakeContext(ctx); errors.Is(err, io.EOF) {
			return errors.New("the endpoint aborts the TLS handshake: it may require http://, or etcd may be starting")
		} else if err != nil {
			return err
		}
		connection = secured
	}
	return greet(connection)
}

// greet begins to speak HTTP/2. Only by its answer does the server show whether it accepts the client's certificate.
func greet(connection net.Conn) error {
	if _, err := connection.Write(http2Preface); err != nil {
		return err
	}
	var header [9]byte // of a frame: three bytes of length, then its type
	n, err := io.ReadFull(connection, header[:])
	const alert, settings = 0x15, 0x04
	switch {
	case n > 0 && header[0] == alert:
		return errWantsTLS
	case n > 0 && err != nil, n > 3 && header[3] != settings:
		return errNoEtcd
	case errors.Is(err, io.EOF):
		return errors.New("the endpoint closes the connection: it may require https://, or etcd may be starting")
	}
	return err
}

// advice returns a remedy for an error of a connection.
func advice(err error) string {
	var (
		header    tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	operation := (*net.OpError)(nil)
	switch timeout := net.Error(nil); {
	case errors.As(err, &operation) && operation.Op == "dial" && operation.Timeout():
		return "the endpoint does not accept connections in time: check the address and firewalls"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "the endpoint accepts connections, but does not answer in time: etcd or the network is too slow"
	case errors.As(err, &header):
		return errNoTLS.Error()
	case errors.As(err, &authority):
		return text + ": check that the CA file has the issuer of its certificate"
	case errors.As(err, &host), errors.As(err, &invalid):
		return text
	case refused(err):
		return text + ": the endpoint does not accept the client certificate"
	}
	return text
}

// hopeless reports whether the same connection will fail again.
func hopeless(err error) bool {
	var (
		header tls.RecordHeaderError
		verify *tls.CertificateVerificationError
	)
	return errors.As(err, &header) || errors.As(err, &verify) || refused(err) ||
		errors.Is(err, errWantsTLS) || errors.Is(err, errNoEtcd)
}

// refused reports whether the other side has ended the handshake with an alert.
func refused(err error) bool {
	operation := (*net.OpError)(nil)
	return errors.As(err, &operation) && operation.Op == "remote error"
}
