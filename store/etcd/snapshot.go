package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/annexapi/annex/store"
)

// snapshotBatch is the number of bytes written in one transaction, which is in memory.
const snapshotBatch = 16 << 20

// WriteSnapshot writes values into a new file in the format of etcd's own snapshots, for etcdutl snapshot restore,
// and returns the revision that the restored etcd has. The objects are created at the revisions above base, and the
// history before the last revision is compacted. prefix is the Prefix of Options. The Data of the values must have
// been transformed for the keys with the prefix.
func WriteSnapshot(ctx context.Context, file, prefix string, base uint64, values iter.Seq2[store.Value, error]) (last uint64, err error) {
	if last, err = writeDatabase(ctx, file, prefix, base, values); err != nil {
		return 0, fmt.Errorf("write etcd snapshot %s: %w", file, err)
	}
	if err := appendSum(file); err != nil {
		return 0, fmt.Errorf("write etcd snapshot %s: %w", file, err)
	}
	return last, nil
}

func writeDatabase(ctx context.Context, file, prefix string, base uint64, values iter.Seq2[store.Value, error]) (last uint64, err error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		return 0, err
	}
	defer func() {
		if err == nil {
			err = db.Sync()
		}
		err = errors.Join(err, db.Close())
	}()
	w := &snapshotWriter{db: db, last: base}
	defer w.rollback()
	if err := w.begin(); err != nil {
		return 0, err
	}
	for v, err := range values {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = w.put(root(prefix), v)
		}
		if err != nil {
			return 0, err
		}
	}
	return w.last, w.finish()
}

// snapshotWriter writes etcd's database. It writes only the buckets with content; etcd creates the others.
type snapshotWriter struct {
	db    *bolt.DB
	tx    *bolt.Tx
	last  uint64
	bytes int // in the transaction
	lease int64
}

func (w *snapshotWriter) begin() (err error) {
	if w.tx, err = w.db.Begin(true); err != nil {
		return err
	}
	for _, name := range []string{"key", "meta", "lease"} {
		bucket, err := w.tx.CreateBucketIfNotExists([]byte(name))
		if err != nil {
			return err
		}
		bucket.FillPercent = 0.9 // keys come in order
	}
	return nil
}

func (w *snapshotWriter) rollback() {
	if w.tx != nil {
		_ = w.tx.Rollback() // of a batch that was given up
	}
}

func (w *snapshotWriter) commit() error {
	tx := w.tx
	w.tx = nil
	return tx.Commit()
}

func (w *snapshotWriter) put(root string, v store.Value) error {
	w.last++
	kv := &mvccpb.KeyValue{
		Key:            []byte(root + v.Key),
		Value:          v.Data,
		CreateRevision: int64(w.last),
		ModRevision:    int64(w.last),
		Version:        1,
	}
	if !v.Expires.IsZero() {
		w.lease++
		kv.Lease = w.lease
		left := max(1, int64((time.Until(v.Expires)+time.Second-1)/time.Second))
		if err := w.tx.Bucket([]byte("lease")).Put(binary.BigEndian.AppendUint64(nil, uint64(w.lease)), encodeLease(w.lease, left)); err != nil {
			return err
		}
	}
	data, err := proto.Marshal(kv)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Key, err)
	}
	if err := w.tx.Bucket([]byte("key")).Put(encodeRevision(w.last), data); err != nil {
		return fmt.Errorf("%s: %w", v.Key, err)
	}
	if w.bytes += len(data); w.bytes >= snapshotBatch {
		w.bytes = 0
		if err := w.commit(); err != nil {
			return err
		}
		return w.begin()
	}
	return nil
}

// finish records that everything up to the last revision has been compacted.
func (w *snapshotWriter) finish() error {
	meta := w.tx.Bucket([]byte("meta"))
	for _, name := range []string{"scheduledCompactRev", "finishedCompactRev"} {
		if err := meta.Put([]byte(name), encodeRevision(w.last)); err != nil {
			return err
		}
	}
	return w.commit()
}

// encodeRevision returns a revision as in etcd's keys: its number, and the number of the change within its
// transaction.
func encodeRevision(revision uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 17), revision)
	return binary.BigEndian.AppendUint64(append(b, '_'), 0)
}

// encodeLease encodes etcd's leasepb.Lease, whose package belongs to the server: ID, TTL and RemainingTTL, in
// seconds.
func encodeLease(id, ttl int64) []byte {
	var b []byte
	for field, n := range []int64{id, ttl, ttl} {
		b = protowire.AppendTag(b, protowire.Number(field+1), protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(n))
	}
	return b
}

// appendSum appends the SHA-256 that etcd checks.
func appendSum(file string) (err error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if _, err := f.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return f.Sync()
}
