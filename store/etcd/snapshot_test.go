package etcd_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
)

// The objects do not fit into one transaction.
func TestWriteSnapshot_largeObjects(t *testing.T) {
	const count, base = 40, 1000
	file := filepath.Join(t.TempDir(), "snapshot.db")
	large := bytes.Repeat([]byte("x"), 1<<20)
	last, err := etcd.WriteSnapshot(t.Context(), file, "registry", base, func(yield func(store.Value, error) bool) {
		for i := range count {
			if !yield(store.Value{Key: fmt.Sprintf("/widgets/%02d", i), Data: large}, nil) {
				return
			}
		}
	})
	if err != nil || last != base+count {
		t.Fatalf("revision %d, %v", last, err)
	}

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	size := len(content) - sha256.Size
	if sum := sha256.Sum256(content[:size]); !bytes.Equal(sum[:], content[size:]) {
		t.Error("the checksum does not fit")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Truncate(file, int64(size)); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(revision, data []byte) error {
			kv := &mvccpb.KeyValue{}
			if err := proto.Unmarshal(data, kv); err != nil {
				return err
			}
			if want := fmt.Sprintf("/registry/widgets/%02d", n); string(kv.Key) != want || !bytes.Equal(kv.Value, large) ||
				binary.BigEndian.Uint64(revision) != uint64(base+n+1) || kv.ModRevision != int64(base+n+1) {
				t.Errorf("%s at %x, want %s", kv.Key, revision, want)
			}
			n++
			return nil
		})
	})
	if err != nil || n != count {
		t.Errorf("%d objects, %v", n, err)
	}
}
