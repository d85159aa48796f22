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

// testStorage names the storage that the tests' servers keep their objects in,
// instead of the one that each test would choose: any value of Options.Storage. With
// etcd, testEtcd are its endpoints, separated by commas.
//
// testEncryption is a file by which whatever the tests' servers store is encrypted,
// unless a test has one of its own.
const (
	testStorage    = "ANNEX_TEST_STORAGE"
	testEtcd       = "ANNEX_TEST_ETCD"
	testEncryption = "ANNEX_TEST_ENCRYPTION"
)

// anyPort listens on a free port.
const anyPort = "127.0.0.1:0"

// placed moves a server into the storage that testStorage names. A data directory
// stands for the objects that are in it: servers that share one find each other's
// objects in any storage, one after the other.
func placed(t *testing.T, options annex.Options) annex.Options {
	t.Helper()
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

// storageName is that of a server's storage.
func storageName(options annex.Options) string {
	if options.Storage == nil {
		return embedded.Name
	}
	return options.Storage.Name()
}

// etcdOf are the endpoints and the prefix of a storage in etcd, as flags have them.
func etcdOf(options annex.Options) (endpoints, prefix string) {
	endpoints, prefix, _ = strings.Cut(options.Storage.Location(""), "/test/")
	return endpoints, "/test/" + prefix
}

// shared says whether others write to the storage, too, and raise its revision.
func shared() bool { return os.Getenv(testStorage) == etcd.Name }

// largest is how many bytes an object may well have.
func largest() int {
	if os.Getenv(testStorage) == etcd.Name {
		return 1 << 20 // etcd itself refuses what has more than 1.5 MiB
	}
	return 2 << 20
}

// resume watches from a revision that was seen before a restart. With etcd, a
// server's history begins anew with its watch cache, as kube-apiserver's does: the
// watch is refused with 410 if that is so, and the stream returned is not whole
// but begins now.
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

// Why some tests are not run on etcd.
const (
	notCompacted = "its history is not bounded by the server's options"
	cacheWaits   = "watches wait for upstream's watch cache there"
)

// notOn skips a test that says something that is not so, or is not the server's to
// say, on a storage that testStorage names.
func notOn(t *testing.T, reason string, storages ...string) {
	t.Helper()
	for _, storage := range storages {
		if os.Getenv(testStorage) == storage {
			t.Skipf("not on %s: %s", storage, reason)
		}
	}
}

// againOnEtcd is why hooks cannot be counted there.
const againOnEtcd = "an update begins with what the watch cache holds, and runs the hooks again if that was not the newest"

// about skips a test of one storage while testStorage names another.
func about(t *testing.T, storage string) {
	t.Helper()
	if name := os.Getenv(testStorage); name != "" && name != storage {
		t.Skipf("not on %s: it is about %s", name, storage)
	}
}

// inPlainText skips a test that looks at what is stored while testEncryption is set.
func inPlainText(t *testing.T) {
	t.Helper()
	if os.Getenv(testEncryption) != "" {
		t.Skip("it reads what is stored, which is encrypted")
	}
}
