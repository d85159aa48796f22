package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/cluster"
	"github.com/annexapi/annex/internal/controllers"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/maintenance"
	"github.com/annexapi/annex/internal/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// Options are the façade's options, which document them.
type Options struct {
	DataDir   string
	Storage   string
	FilesDir  string
	StorageOf map[string]string

	StorageMediaTypeOf map[string]string

	Etcd              etcd.Options
	BindAddress       string
	SecurePort        int
	InsecurePort      int
	TLSCertFile       string
	TLSPrivateKeyFile string
	ClientCAFile      string
	TokenAuthFile     string

	EncryptionConfigFile   string
	EncryptionConfigReload bool
	AllowUnreadable        bool

	HistoryAge         time.Duration
	HistoryRevisions   int64
	HistoryBytes       int64
	ObjectCacheSize    int64
	ValueCacheSize     int64
	MemoryBudget       int64
	RequestTimeout     time.Duration
	ShutdownTimeout    time.Duration
	ShutdownDelay      time.Duration
	Controllers        []string
	UnrestrictedUpdate bool

	Aggregated bool
	Cluster    cluster.Options
	CertDir    string

	SelfCertify SelfCertify
}

// Ports that are not numbers, as the façade documents them.
const (
	portOff = -1
	portAny = -2
)

// What the ports are called in errors.
const (
	securePort   = "secure port"
	insecurePort = "insecure port"
)

// Complete fills in defaults and returns the first mistake, all those in the
// choice of storages as one.
func (o *Options) Complete(definition *define.Server) error {
	if o.Storage == "" {
		o.Storage = "embedded"
	}
	if err := o.checkStorage(o.Storage); err != nil {
		return err
	}
	at, err := o.place(definition)
	if err != nil {
		return err
	}
	if _, err := o.mediaTypes(definition, at); err != nil {
		return err
	}
	if o.FilesDir != "" && !slices.Contains(at.names(), "files") {
		return fmt.Errorf("--files-dir is given, but nothing is kept in files: the storage is %s", o.Storage)
	}
	if err := o.completeSelfCertify(definition); err != nil {
		return err
	}
	if err := o.completeLife(); err != nil {
		return err
	}
	if o.BindAddress == "" {
		o.BindAddress = "127.0.0.1"
		if o.Aggregated && cluster.InPod() {
			o.BindAddress = "0.0.0.0"
		}
	}
	if net.ParseIP(o.BindAddress) == nil {
		return fmt.Errorf("bind address %q is not an IP address", o.BindAddress)
	}
	if o.SecurePort == portAny {
		o.SecurePort = 0
	}
	if o.InsecurePort == 0 {
		o.InsecurePort = portOff
	}
	for _, port := range []struct {
		name   string
		number int
	}{{securePort, o.SecurePort}, {insecurePort, o.InsecurePort}} {
		if port.number < portAny || port.number > 65535 {
			return fmt.Errorf("%s %d is not between 0 and 65535", port.name, port.number)
		}
	}
	if o.Controllers == nil {
		o.Controllers = []string{controllers.All}
	}
	if _, err := controllers.Select(definition.Controllers, o.Controllers); err != nil {
		return fmt.Errorf("--controllers: %w", err)
	}
	if o.HistoryAge < 0 || o.HistoryRevisions < 0 || o.HistoryBytes < 0 {
		return fmt.Errorf("history limits cannot be negative")
	}
	if o.EncryptionConfigReload && o.EncryptionConfigFile == "" {
		return fmt.Errorf("there is no --encryption-provider-config to be read again automatically")
	}
	if o.RequestTimeout < 0 || o.ShutdownTimeout < 0 || o.ShutdownDelay < 0 {
		return fmt.Errorf("timeouts cannot be negative")
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = time.Minute
	}
	if o.ShutdownTimeout == 0 {
		o.ShutdownTimeout = 10 * time.Second
	}
	return nil
}

// checkStorage returns the first mistake in what a storage needs.
func (o *Options) checkStorage(name string) error {
	switch name {
	case "memory":
		return nil
	case "embedded":
		if o.DataDir == "" {
			return fmt.Errorf("storage embedded needs a data directory")
		}
		return nil
	case "files":
		if o.filesDir() == "" {
			return fmt.Errorf("storage files needs a directory for them, or a data directory")
		}
		return nil
	case "etcd":
		return o.Etcd.Validate()
	}
	return fmt.Errorf("storage %q: choose embedded, files, memory or etcd", name)
}

// core is how the revisioned core above a storage's journal is run.
func (o *Options) core() mvcc.Options {
	return mvcc.Options{History: o.history(), ObjectCacheBytes: o.ObjectCacheSize, ValueBytes: o.ValueCacheSize}
}

func (o *Options) history() mvcc.History {
	return mvcc.History{MinAge: o.HistoryAge, MinRevisions: o.HistoryRevisions, MaxBytes: o.HistoryBytes}
}

// path returns a place in the data directory, or nothing if there is none.
func (o *Options) path(name string) string {
	if o.DataDir == "" {
		return ""
	}
	return filepath.Join(o.DataDir, name)
}

// listen opens a port; nil if it is off.
func (o *Options) listen(name string, port int) (net.Listener, error) {
	switch port {
	case portOff:
		return nil, nil
	case portAny:
		port = 0
	}
	l, err := net.Listen("tcp", net.JoinHostPort(o.BindAddress, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %d of %s is in use by another program; choose another", name, port, o.BindAddress)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %d needs privileges; choose one above 1023", name, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("bind address %s is none of this machine's; 0.0.0.0 and :: are all of them", o.BindAddress)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// open opens a storage for the resources of a definition.
func (o *Options) open(ctx context.Context, name string) (store.Backend, error) {
	logger := klog.FromContext(ctx)
	if name == "etcd" {
		options := o.Etcd
		options.Logger = slog.New(logr.ToSlogHandler(logger))
		return etcd.Open(ctx, options)
	}
	j, err := o.journal(logger, name, nil)
	if err != nil {
		return nil, err
	}
	return mvcc.Open(ctx, j, o.core())
}

// journal opens what makes revisions durable.
func (o *Options) journal(logger klog.Logger, name string, layout []files.Resource) (journal.Journal, error) {
	if name == "memory" {
		return memory.NewAfter(firstRevision(time.Now())), nil
	}
	dir := o.dir(name)
	if err := maintenance.FinishRestore(dir); err != nil {
		return nil, err
	}
	return o.openJournal(logger, name, dir, layout)
}

// dir is the directory of a storage that has one.
func (o *Options) dir(name string) string {
	if name == "files" {
		return o.filesDir()
	}
	return o.path("storage")
}

// openJournal opens the journal of a storage in a directory. The layout is for files.
func (o *Options) openJournal(logger klog.Logger, name, dir string, layout []files.Resource) (journal.Journal, error) {
	if name == "files" {
		return files.Open(dir, files.Options{Resources: layout, Logger: slog.New(logr.ToSlogHandler(logger))})
	}
	return embedded.Open(dir, embedded.Options{Logger: slog.New(logr.ToSlogHandler(logger))})
}

// firstRevision is where a store begins that is empty at every start: the time in
// microseconds, which no earlier one can have reached, for that took more than a
// million writes in every second that it lived, or a clock that was set back.
func firstRevision(now time.Time) uint64 { return uint64(now.UnixMicro()) }
