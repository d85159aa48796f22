// Package driver is the contract between a server and the storages that it can keep its
// objects in. A driver is a value: which storage it is, where it keeps what, and how it is
// opened. It says so in a few methods, so that nothing outside a driver has to know it by
// its name. It knows no Kubernetes.
//
// A driver of a journal implements [Journal], or [Directory] if it keeps its records in a
// directory that tools can work on. A driver of a backend with revisions of its own
// implements the interface Driver of the package store.
package driver

import (
	"context"
	"log/slog"

	"github.com/annexapi/annex/store/journal"
)

// Driver describes a storage. All methods may be called concurrently, before anything is
// opened, and have no side effects. A value that is only a Driver cannot be opened: see the
// package documentation for what else it implements.
type Driver interface {
	// Name is a DNS label. It says in messages, metrics and on the command line which
	// storage is meant. A server has one storage of a name: kinds whose drivers have the
	// same name share it.
	Name() string
	// Traits say what a server has to take into account. They do not change.
	Traits() Traits
	// Validate returns the first mistake in what the driver was made with. The data
	// directory is the server's, empty if it has none.
	Validate(dataDir string) error
	// Location says where the objects are: the path of a directory, or what else tells the
	// storage from others of the same name. It holds no secret. Two drivers with the same
	// name and location are the same storage.
	Location(dataDir string) string
}

// Traits are what a server has to know of a storage. The zero value keeps what is stored on
// this machine, for one process at a time.
type Traits struct {
	// Ephemeral storages forget everything when they are closed.
	Ephemeral bool
	// Remote storages are reached over a network and shared by replicas of the server. A
	// server starts, unready, although one cannot be reached.
	Remote bool
	// TextOnly storages show what they store to people, and so store JSON only.
	TextOnly bool
}

// Env is what a storage gets of the server that opens it.
type Env struct {
	// DataDir is the server's data directory, empty if it has none.
	DataDir string
	// Logger receives what the storage has to say while it is open. It is never nil.
	Logger *slog.Logger
	// Resources are those whose objects are kept in the storage.
	Resources []Resource
	// Idle storages are opened by a tool: nothing happens in them by itself, and opening
	// one that cannot be reached fails after a while.
	Idle bool
}

// Resource is a resource whose objects are kept in a storage.
type Resource struct {
	// Group and Resource name it; the core group is "core".
	Group, Resource string
	// Prefix is what the keys of its objects begin with. A slash follows, then the
	// namespace and a slash if it is Namespaced, then the name.
	Prefix     string
	Namespaced bool
	// Status says that clients write the status apart from the rest.
	Status bool
}

// Journal is a driver whose revisions are kept by a journal, below the project's own
// revisioned core.
type Journal interface {
	Driver
	// OpenJournal opens the journal, and makes it if it is missing. The context bounds the
	// opening only. The caller closes the journal. An error that matches
	// journal.ErrLocked says that another process has it open.
	OpenJournal(ctx context.Context, env Env) (journal.Journal, error)
}

// Directory is a journal in a directory, which Location names.
type Directory interface {
	Journal
	// OpenIn opens the journal of another directory as OpenJournal does, which is how a
	// restore builds one beside the one that is in use.
	OpenIn(ctx context.Context, dir string, env Env) (journal.Journal, error)
	// Present returns an error matching fs.ErrNotExist if the directory holds no journal.
	Present(dir string) error
	// Scan reads the records of a journal that is not open, as journal.Journal's Replay
	// does, and reports damage instead of ending at it.
	Scan(ctx context.Context, dir string, yield func(journal.Record) error, damaged func(*journal.Damage)) (compacted uint64, err error)
	// LastRevision reads the newest revision of a journal that is not open.
	LastRevision(ctx context.Context, dir string) (uint64, error)
}
