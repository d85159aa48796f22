package serve

import (
	"context"
	"net"
	"slices"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/audit"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/requestlog"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/encryption"
)

// opened has everything of a server that is opened and must be closed: files, storages, certificates, addresses, and
// the files and clients of its mode.
type opened struct {
	plan       *plan.Plan
	encryption *encryption.Encryption
	recorders  recorders
	serving    *upstream.Serving
	storages   Storages
	certs      *certs.Certs
	listeners  listeners
	loopback   *loopback.Loopback
	mode       modeFiles
}

// newOpened opens the parts of a plan in the order in which they can be refused. After an error, the caller closes
// the parts that are open.
func newOpened(ctx context.Context, p *plan.Plan, chosen mode, closing *closers) (*opened, error) {
	if err := checkDataDir(p); err != nil {
		return nil, err
	}
	keys, err := openEncryption(ctx, p, closing)
	if err != nil {
		return nil, err
	}
	recorders, err := openRecorders(ctx, p, closing)
	if err != nil {
		return nil, err
	}
	serving, err := upstream.OpenServing(p.Options.Serving)
	if err != nil {
		return nil, err
	}
	closing.run(serving.Close)
	storages, err := openDurable(ctx, p, closing)
	if err != nil {
		return nil, err
	}
	certificates, err := openCerts(ctx, p, chosen, closing)
	if err != nil {
		return nil, err
	}
	listeners, err := openListeners(&p.Options, closing)
	if err != nil {
		return nil, err
	}
	own := loopback.New()
	closing.add(own.Close)
	open, err := chosen.open(ctx, base{certs: certificates, loopback: own, storages: storages, closing: closing})
	if err != nil {
		return nil, err
	}
	return &opened{p, keys, recorders, serving, storages, certificates, listeners, own, open}, nil
}

func openEncryption(ctx context.Context, p *plan.Plan, closing *closers) (*encryption.Encryption, error) {
	keys, err := encryption.Open(ctx, encryption.Options{
		File:   p.Options.EncryptionConfigFile,
		Reload: p.Options.EncryptionConfigReload,
		Server: p.Definition.Name,
	})
	if err != nil {
		return nil, err
	}
	closing.run(keys.Close)
	return keys, nil
}

// recorders record requests. Each is nil if its option is not set.
type recorders struct {
	audit     *audit.Audit
	accessLog *audit.AccessLog
	tracing   *upstream.Tracing
	requests  *requestlog.Ring // of the console
}

func openRecorders(ctx context.Context, p *plan.Plan, closing *closers) (recorders, error) {
	events, err := audit.Open(ctx, p.Options.Audit)
	if err != nil {
		return recorders{}, err
	}
	closing.add(events.Close)
	accessLog, err := audit.OpenAccessLog(p.Options.AccessLog)
	if err != nil {
		return recorders{}, err
	}
	closing.add(accessLog.Close)
	tracing, err := upstream.OpenTracing(p.Options.TracingConfigFile, p.Definition, p.Options.ShutdownTimeout)
	if err != nil {
		return recorders{}, err
	}
	closing.add(tracing.Close)
	opened := recorders{audit: events, accessLog: accessLog, tracing: tracing}
	if p.Console.Served {
		opened.requests = requestlog.NewRing(requestlog.DefaultSize)
	}
	return opened, nil
}

// openDurable opens the data directory and the storages. The record of the data directory is durable before the first
// write of a client.
func openDurable(ctx context.Context, p *plan.Plan, closing *closers) (Storages, error) {
	openDir := func() error {
		lock, err := openDataDir(ctx, p)
		if err != nil {
			return err
		}
		closing.add(lock.Close)
		return nil
	}
	// Create no directory if a remote storage turns out to be unreachable.
	first := slices.ContainsFunc(p.Storages, func(s *plan.Storage) bool { return !s.Traits().Remote && !s.Traits().Ephemeral })
	if first {
		if err := openDir(); err != nil {
			return nil, err
		}
	}
	storages, err := openStorages(ctx, p)
	if err != nil {
		return nil, err
	}
	closing.add(storages.Close)
	if !first {
		if err := openDir(); err != nil {
			return nil, err
		}
	}
	return storages, recordDataDir(p)
}

func openCerts(ctx context.Context, p *plan.Plan, chosen mode, closing *closers) (*certs.Certs, error) {
	options := certs.Options{
		Dir:      p.CertDir(),
		Hosts:    hosts(p),
		CertFile: p.Options.TLSCertFile,
		KeyFile:  p.Options.TLSPrivateKeyFile,
	}
	chosen.certificates(&options)
	opened, err := certs.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	closing.run(opened.Close)
	return opened, nil
}

// hosts returns the hosts that the generated certificate covers, besides this machine's.
func hosts(p *plan.Plan) []string {
	all := []string{bindIP(&p.Options).String()}
	if name := p.Options.Serving.ExternalHostname; name != "" {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		all = append(all, name)
	}
	return all
}

// rootCA returns the authorities that verify the server, for clients that do not connect through a cluster.
func (o *opened) rootCA() []byte {
	if !o.mode.administers() {
		return nil
	}
	return o.certs.RootCA()
}
