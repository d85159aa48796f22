package apitest_test

import (
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// testStorage names the storage of the tests' servers, instead of each test's own choice: any value of
// Options.Storage. With etcd, testEtcd are its endpoints, separated by commas.
//
// testFastPath is false for servers without the fast path. Tests that count its answers are skipped then.
//
// testEncryption is a configuration file by which the tests' servers encrypt all objects, unless a test has one of
// its own.
const (
	testStorage    = "ANNEX_TEST_STORAGE"
	testEtcd       = "ANNEX_TEST_ETCD"
	testEncryption = "ANNEX_TEST_ENCRYPTION"
	testFastPath   = "ANNEX_TEST_FAST_PATH"
)

// anyPort listens on a free port.
const anyPort = "127.0.0.1:0"

// placed moves a server into the storage that testStorage names. A data directory stands for its objects: servers
// that share one find each other's objects in any storage, one after the other.
func placed(t *testing.T, options annex.Options) annex.Options {
	t.Helper()
	options.DisableFastPath = options.DisableFastPath || slow()
	if options.Storage == nil {
		options.Storage = embedded.Dir("")
	}
	if options.EncryptionConfigFile == "" && options.Storage.Name() != files.Name { // tests of files read them
		options.EncryptionConfigFile = os.Getenv(testEncryption)
	}
	name := os.Getenv(testStorage)
	if name == "" {
		return options
	}
	switch {
	case options.Storage.Name() == name: // perhaps in a directory of the test's own
	case name == etcd.Name:
		directory := options.DataDir
		if directory == "" {
			directory = t.TempDir()
		}
		digest := fnv.New64a()
		digest.Write([]byte(directory))
		options.Storage = etcd.Cluster(
			etcd.Options{Endpoints: strings.Split(os.Getenv(testEtcd), ","), Prefix: fmt.Sprintf("/test/%x", digest.Sum64())},
		)
	case name == memory.Name:
		options.Storage = memory.Storage()
	case name == embedded.Name:
		options.Storage = embedded.Dir("")
	case name == files.Name:
		options.Storage = files.Dir("")
	default:
		t.Fatalf("%s=%s: no such storage", testStorage, name)
	}
	if name != memory.Name && name != etcd.Name && options.DataDir == "" {
		options.DataDir = t.TempDir()
	}
	t.Logf("objects are stored in %s", name)
	return options
}

// storageName returns the name of a server's storage.
func storageName(options annex.Options) string {
	if options.Storage == nil {
		return embedded.Name
	}
	return options.Storage.Name()
}

// etcdOf returns the endpoints and the prefix of a storage in etcd, in the form of flags.
func etcdOf(options annex.Options) (endpoints, prefix string) {
	endpoints, prefix, _ = strings.Cut(options.Storage.Location(""), "/test/")
	return endpoints, "/test/" + prefix
}

// shared reports whether others write to the storage, too, and raise its revision.
func shared() bool { return os.Getenv(testStorage) == etcd.Name }

// slow reports whether the tests' servers have no fast path.
func slow() bool { return os.Getenv(testFastPath) == "false" }

// largest returns a size in bytes that an object may reasonably have.
func largest() int {
	if os.Getenv(testStorage) == etcd.Name {
		return 1 << 20 // etcd itself rejects values above 1.5 MiB
	}
	return 2 << 20
}

// resume watches from a revision that was seen before a restart. With etcd, a server's history begins anew with its
// watch cache, as kube-apiserver's does: if the watch is rejected with 410 for that reason, the returned stream is
// not whole but begins now.
func (c *client) resume(path, revision string) (s *stream, whole bool) {
	c.t.Helper()
	whole = true
	if shared() {
		refused := c.watch(path + "&timeoutSeconds=1&resourceVersion=" + revision)
		var first event
		if err := refused.decoder.Decode(&first); err == nil && first.Type == "ERROR" {
			if text(first.Object, "code") != "410" {
				c.t.Errorf("watch %s from %s: %v", path, revision, first)
			}
			list, _, _ := strings.Cut(path, "?")
			revision, whole = c.get(list).str("metadata", "resourceVersion"), false
		}
	}
	return c.watch(path + "&resourceVersion=" + revision), whole
}

// Reasons why some tests do not run on etcd.
const (
	notCompacted = "its history is not bounded by the server's options"
	cacheWaits   = "watches wait for upstream's watch cache there"
)

// notOn skips a test whose statement does not hold, or does not concern the server, on a storage that testStorage
// names.
func notOn(t *testing.T, reason string, storages ...string) {
	t.Helper()
	for _, storage := range storages {
		if os.Getenv(testStorage) == storage {
			t.Skipf("not on %s: %s", storage, reason)
		}
	}
}

// againOnEtcd is the reason why the calls of hooks cannot be counted there.
const againOnEtcd = "an update begins with what the watch cache holds, and runs the hooks again if that was not the newest"

// about skips a test of one storage while testStorage names another.
func about(t *testing.T, storage string) {
	t.Helper()
	if name := os.Getenv(testStorage); name != "" && name != storage {
		t.Skipf("not on %s: it is about %s", name, storage)
	}
}

// inPlainText skips a test that reads stored objects while testEncryption is set.
func inPlainText(t *testing.T) {
	t.Helper()
	if os.Getenv(testEncryption) != "" {
		t.Skip("it reads what is stored, which is encrypted")
	}
}
