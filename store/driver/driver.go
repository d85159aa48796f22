// Package driver is the contract between a server and the storages that it can keep its objects in. A driver is a
// value that names a storage, locates it and opens it. Its methods describe the storage, so that no code outside a
// driver depends on a particular name. The package knows no Kubernetes.
//
// A driver of a journal implements [Journal], or [Directory] if the journal keeps its records in a directory that
// tools can work on. A driver of a backend that numbers revisions itself implements the interface Driver of package
// store.
package driver

import (
	"context"
	"log/slog"

	"github.com/annexapi/annex/store/journal"
)

// Driver describes a storage. All methods may be called concurrently, before anything is opened, and have no side
// effects. A value that is only a Driver cannot be opened: the package documentation lists the interfaces that open
// one.
type Driver interface {
	// Name returns a DNS label. It names the storage in messages, in metrics and on the command line. A server has
	// one storage of each name: kinds whose drivers have the same name share it.
	Name() string
	// Traits returns the properties of the storage that matter to a server. They do not change.
	Traits() Traits
	// Validate returns the first mistake in the driver's configuration. dataDir is the server's data directory, empty
	// if it has none.
	Validate(dataDir string) error
	// Location returns the place of the objects: the path of a directory, or any other text that distinguishes the
	// storage from others of the same name. It holds no secret. Two drivers with the same name and location are the
	// same storage.
	Location(dataDir string) string
}

// Traits are the properties of a storage that matter to a server. The zero value is a durable storage on this
// machine, used by one process at a time.
type Traits struct {
	// Ephemeral storages lose everything when they are closed.
	Ephemeral bool
	// Remote storages are reached over a network and shared by replicas of the server. A server starts, unready, even
	// if its remote storage cannot be reached.
	Remote bool
	// TextOnly storages show their contents to people, and therefore store JSON only.
	TextOnly bool
}

// Env is the environment in which a server opens a storage.
type Env struct {
	// DataDir is the server's data directory, empty if it has none.
	DataDir string
	// Logger receives the messages of the open storage. It is never nil.
	Logger *slog.Logger
	// Resources are the resources whose objects are kept in the storage.
	Resources []Resource
	// Idle is set by tools. An idle storage starts no background work, and opening an unreachable one fails after a
	// while.
	Idle bool
}

// Resource is a resource whose objects are kept in a storage.
type Resource struct {
	// Group and Resource name the resource; the core group is "core".
	Group, Resource string
	// Prefix is the beginning of its objects' keys. A slash follows, then the namespace and a slash if the resource
	// is Namespaced, then the name.
	Prefix     string
	Namespaced bool
	// Status reports that clients write the status separately, as a subresource.
	Status bool
}

// Journal is a driver of a journal, which the project's revisioned core writes to.
type Journal interface {
	Driver
	// OpenJournal opens the journal, and creates it if it is missing. The context bounds only the opening. The caller
	// closes the journal. The error matches journal.ErrLocked if another process has the journal open.
	OpenJournal(ctx context.Context, env Env) (journal.Journal, error)
}

// Directory is a driver of a journal in a directory, which Location returns.
type Directory interface {
	Journal
	// OpenIn opens the journal of another directory as OpenJournal does. A restore builds a new journal with it
	// beside the one in use.
	OpenIn(ctx context.Context, dir string, env Env) (journal.Journal, error)
	// Present returns an error matching fs.ErrNotExist if the directory holds no journal.
	Present(dir string) error
	// Scan reads the records of a closed journal, as Replay of journal.Journal does, but reports damage and continues
	// behind it.
	Scan(ctx context.Context, dir string, yield func(journal.Record) error, damaged func(*journal.Damage)) (compacted uint64, err error)
	// LastRevision reads the newest revision of a closed journal.
	LastRevision(ctx context.Context, dir string) (uint64, error)
}
