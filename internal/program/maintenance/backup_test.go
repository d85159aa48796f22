package maintenance_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

var sample = []store.Value{
	{Key: "/a/1", Revision: 7, Data: []byte(`{"a":1}`), Context: []byte("/registry/a/1")},
	{
		Key:      "/a/2",
		Revision: 9,
		Data:     []byte{0, 0xff, '\n'},
		Expires:  time.Date(2030, 1, 2, 3, 4, 5, 678000, time.UTC),
		Context:  []byte("/registry/a/2"),
	},
	{Key: "/näme", Revision: 8, Data: []byte{}, Context: []byte("/registry/näme")},
}

var sampleHeader = maintenance.Header{
	Server: "shop", Version: "v1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	Storages:  []maintenance.HeaderStorage{{Name: "etcd", Revision: 9, ContextPrefix: "/registry"}},
	Resources: []maintenance.HeaderResource{{Resource: "a", Prefix: "/a"}},
}

func sampleBackup(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := maintenance.NewWriter(&file, sampleHeader)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range sample {
		if err := w.Add(0, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestBackup_roundTrip(t *testing.T) {
	r, err := maintenance.NewReader(bytes.NewReader(sampleBackup(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(r.Header), fmt.Sprint(sampleHeader); got != want {
		t.Errorf("header %s, want %s", got, want)
	}
	for _, want := range sample {
		_, got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got.Key != want.Key || got.Revision != want.Revision || !bytes.Equal(got.Data, want.Data) || !got.Expires.Equal(want.Expires) ||
			!bytes.Equal(got.Context, want.Context) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestCheck_damagedBackup(t *testing.T) {
	if testing.Short() {
		t.Skip("reads a backup once for each of its bits")
	}
	whole := sampleBackup(t)
	for n := range whole {
		if _, err := maintenance.Check(bytes.NewReader(whole[:n])); !errors.Is(err, maintenance.ErrBackup) {
			t.Fatalf("cut off at %d: %v", n, err)
		}
	}
	for n := range len(whole) * 8 {
		damaged := bytes.Clone(whole)
		damaged[n/8] ^= 1 << (n % 8)
		if _, err := maintenance.Check(bytes.NewReader(damaged)); !errors.Is(err, maintenance.ErrBackup) {
			t.Fatalf("bit %d flipped: %v", n, err)
		}
	}
	if _, err := maintenance.Check(bytes.NewReader(append(whole, 0))); !errors.Is(err, maintenance.ErrBackup) {
		t.Errorf("with something behind: %v", err)
	}
}

// An invalid length in a block with a correct checksum is a bug of the writer.
func TestReader_invalidLength(t *testing.T) {
	for _, length := range []uint32{1 << 31, 1<<32 - 1, 1 << 20} {
		spoilt := sampleBackup(t)
		block := spoilt[12+9+binary.BigEndian.Uint32(spoilt[13:]):] // after the header
		payload := block[5:][:binary.BigEndian.Uint32(block[1:])]
		binary.BigEndian.PutUint32(payload[18:], length)
		crc := crc32.Checksum(block[:5+len(payload)], crc32.MakeTable(crc32.Castagnoli))
		binary.BigEndian.PutUint32(block[5+len(payload):], crc)
		_, err := maintenance.Check(bytes.NewReader(spoilt))
		if !errors.Is(err, maintenance.ErrBackup) || !strings.Contains(err.Error(), "inconsistent value") {
			t.Errorf("a key of %d bytes: %v", length, err)
		}
	}
}

func TestReader_newerFormat(t *testing.T) {
	newer := sampleBackup(t)
	binary.BigEndian.PutUint32(newer[8:], 2)
	_, err := maintenance.Check(bytes.NewReader(newer))
	if !errors.Is(err, maintenance.ErrBackup) || !strings.Contains(err.Error(), "format 2, this program supports only 1") {
		t.Errorf("got %v", err)
	}
}

func core(t testing.TB) *mvcc.Core {
	t.Helper()
	c, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{Idle: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func put(t testing.TB, c store.Maintenance, values ...store.Value) {
	t.Helper()
	for _, v := range values {
		if _, err := c.Put(t.Context(), v, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func object(i int) store.Value {
	return store.Value{Key: fmt.Sprintf("/a/%04d", i), Data: fmt.Appendf(nil, "object %d", i)}
}

func objects(n int) []store.Value {
	var all []store.Value
	for i := range n {
		all = append(all, object(i))
	}
	return all
}

// breaking is Tools whose backup breaks off after some bytes without an error.
type breaking struct {
	maintenance.Tools
	after int
}

func (b breaking) Backup(ctx context.Context, to io.Writer) error {
	var file bytes.Buffer
	if err := b.Tools.Backup(ctx, &file); err != nil {
		return err
	}
	_, err := to.Write(file.Bytes()[:b.after])
	return err
}

func TestBackupFile_isAtomic(t *testing.T) {
	c := core(t)
	put(t, c, objects(100)...)
	local := &maintenance.Local{Server: "shop", Storages: []maintenance.Storage{{Name: "memory", Backend: c}}}
	dir := t.TempDir()
	path := filepath.Join(dir, "backup")
	if _, err := maintenance.BackupFile(t.Context(), breaking{local, 1000}, path, false); !errors.Is(err, maintenance.ErrBackup) {
		t.Errorf("one that breaks off: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
	contents, err := maintenance.BackupFile(t.Context(), local, path, false)
	if err != nil {
		t.Fatal(err)
	}
	if contents.Objects != 100 || contents.Storages[0].Revision != 101 {
		t.Errorf("got %+v", contents)
	}
	if _, err := maintenance.BackupFile(t.Context(), breaking{local, 1000}, path, true); err == nil {
		t.Error("one that breaks off replaced a good one")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := maintenance.Check(f); err != nil {
		t.Error(err)
	}
}

// meanwhile is Tools that call a function while they write a backup.
type meanwhile struct {
	maintenance.Tools
	do func()
}

func (m meanwhile) Backup(ctx context.Context, to io.Writer) error {
	m.do()
	return m.Tools.Backup(ctx, to)
}

func TestBackupFile_concurrentFile_stays(t *testing.T) {
	c := core(t)
	put(t, c, objects(10)...)
	local := &maintenance.Local{Server: "shop", Storages: []maintenance.Storage{{Name: "memory", Backend: c}}}
	dir := t.TempDir()
	path := filepath.Join(dir, "backup")
	appears := meanwhile{local, func() {
		if err := os.WriteFile(path, []byte("another's"), 0o600); err != nil {
			t.Error(err)
		}
	}}
	if _, err := maintenance.BackupFile(t.Context(), appears, path, false); !errors.Is(err, maintenance.ErrExists) {
		t.Errorf("got %v", err)
	}
	if content, err := os.ReadFile(path); string(content) != "another's" {
		t.Errorf("the file is %q, %v", content, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
	if _, err := maintenance.BackupFile(t.Context(), appears, path, true); err != nil {
		t.Error(err)
	}
}

func source(revision uint64, values []store.Value) maintenance.Source {
	return maintenance.Source{Name: "the source", Revision: revision, Values: func(context.Context) iter.Seq2[store.Value, error] {
		return func(yield func(store.Value, error) bool) {
			for _, v := range values {
				v.Context = value.DefaultContext(v.Key)
				if !yield(v, nil) {
					return
				}
			}
		}
	}}
}

// failing is a backend that accepts a limited number of writes.
type failing struct {
	store.Maintenance
	left chan struct{}
}

func (f failing) Put(ctx context.Context, v store.Value, seen uint64) (uint64, error) {
	select {
	case <-f.left:
		return f.Maintenance.Put(ctx, v, seen)
	default:
		return 0, errors.New("the connection is lost")
	}
}

func TestCopy_interrupted_continues(t *testing.T) {
	target, local := core(t), &maintenance.Local{}
	s := source(1, objects(500))
	left := make(chan struct{}, 123)
	for range cap(left) {
		left <- struct{}{}
	}
	if _, err := local.Copy(
		t.Context(),
		s,
		"the target",
		failing{target, left},
		maintenance.CopyOptions{},
	); err == nil ||
		!strings.Contains(err.Error(), "run the command again to continue") {
		t.Fatalf("interrupted: %v", err)
	}
	written := int64(target.Revision() - 1)
	if written == 0 {
		t.Fatal("nothing was written before")
	}
	done, err := local.Copy(t.Context(), s, "the target", target, maintenance.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if done.Objects != 500 || done.Written != 500-written {
		t.Errorf("got %+v", done)
	}
	if done, err = local.Copy(t.Context(), s, "the target", target, maintenance.CopyOptions{}); err != nil || done.Written != 0 {
		t.Errorf("again: %+v, %v", done, err)
	}
}

func TestCopy_refusals(t *testing.T) {
	local := &maintenance.Local{Resources: []maintenance.Resource{{Resource: schema.GroupResource{Resource: "a"}, Prefix: "/a"}}}
	other := object(3)
	other.Data = []byte("another")
	for name, test := range map[string]struct {
		there   []store.Value
		source  maintenance.Source
		options maintenance.CopyOptions
		want    error
	}{
		"lower revisions":           {nil, source(1000, objects(5)), maintenance.CopyOptions{}, maintenance.ErrBehind},
		"lower, accepted":           {nil, source(1000, objects(5)), maintenance.CopyOptions{ResetWatches: true}, nil},
		"one that differs":          {[]store.Value{other}, source(1, objects(5)), maintenance.CopyOptions{}, maintenance.ErrNotEmpty},
		"one that differs, taken":   {[]store.Value{other}, source(1, objects(5)), maintenance.CopyOptions{Overwrite: true}, nil},
		"one that is not copied":    {[]store.Value{object(9)}, source(1, objects(5)), maintenance.CopyOptions{}, maintenance.ErrNotEmpty},
		"one that is not, accepted": {[]store.Value{object(9)}, source(1, objects(5)), maintenance.CopyOptions{Overwrite: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			target := core(t)
			put(t, target, test.there...)
			before := target.Revision()
			_, err := local.Copy(t.Context(), test.source, "the target", target, test.options)
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if err != nil && target.Revision() != before {
				t.Error("something was written")
			}
		})
	}
}

// reversing is a transformer that binds a value to its context.
type reversing struct{}

var mark = []byte("k8s:enc:test:")

func (reversing) TransformToStorage(_ context.Context, data []byte, c value.Context) ([]byte, error) {
	data = bytes.Clone(data)
	slices.Reverse(data)
	return slices.Concat(mark, c.AuthenticatedData(), []byte("|"), data), nil
}

func (reversing) TransformFromStorage(_ context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	data, ok := bytes.CutPrefix(data, slices.Concat(mark, c.AuthenticatedData(), []byte("|")))
	if !ok {
		return nil, false, errors.New("authentication failed")
	}
	data = bytes.Clone(data)
	slices.Reverse(data)
	return data, false, nil
}

func TestRecoded_encryptedValues(t *testing.T) {
	encrypted := store.Value{Key: "/a/1", Context: []byte("/a/1")}
	encrypted.Data, _ = reversing{}.TransformToStorage(t.Context(), []byte("secret"), encrypted.Context)
	values := func(yield func(store.Value, error) bool) { yield(encrypted, nil) }
	elsewhere := func(key string) value.DefaultContext { return []byte("/registry" + key) }
	recoded := func(local *maintenance.Local) (got store.Value, err error) {
		for got, err = range local.Recoded(t.Context(), values, elsewhere) {
			return got, err
		}
		return
	}
	if _, err := recoded(&maintenance.Local{}); !errors.Is(err, maintenance.ErrEncrypted) {
		t.Errorf("without keys: %v", err)
	}
	got, err := recoded(&maintenance.Local{Resources: []maintenance.Resource{{Prefix: "/a", Transformer: reversing{}}}})
	if err != nil {
		t.Fatal(err)
	}
	plain, _, err := reversing{}.TransformFromStorage(t.Context(), got.Data, value.DefaultContext("/registry/a/1"))
	if err != nil || string(plain) != "secret" {
		t.Errorf("at its new place: %q, %v", plain, err)
	}
}

// lingering is Tools whose backup ends only when its writer fails or its context ends.
type lingering struct {
	maintenance.Tools
	ended *atomic.Bool
}

func (l lingering) Backup(ctx context.Context, to io.Writer) error {
	err := l.Tools.Backup(ctx, to)
	<-ctx.Done()
	l.ended.Store(true)
	return err
}

type unwritable struct{}

func (unwritable) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestDumpTo_writeError(t *testing.T) {
	c := core(t)
	put(t, c, objects(3000)...)
	tools := lingering{&maintenance.Local{Storages: []maintenance.Storage{{Name: "memory", Backend: c}}}, &atomic.Bool{}}
	if _, err := maintenance.DumpTo(
		t.Context(),
		tools,
		unwritable{},
		"",
		nil,
	); err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if !tools.ended.Load() {
		t.Error("they are still in use")
	}
}

// elsewhere is a backend with other value contexts.
type elsewhere struct{ store.Maintenance }

func (elsewhere) ValueContext(key string) value.DefaultContext { return []byte("/registry" + key) }

func TestCopy_undecryptable_writesNothing(t *testing.T) {
	values := objects(50)
	values[49].Data = append(slices.Clone(mark), "secret"...)
	target := core(t)
	_, err := (&maintenance.Local{}).Copy(t.Context(), source(1, values), "the target", elsewhere{target}, maintenance.CopyOptions{})
	if !errors.Is(err, maintenance.ErrEncrypted) || !strings.Contains(err.Error(), "/a/0049") {
		t.Errorf("got %v", err)
	}
	if target.Revision() != 1 {
		t.Errorf("something was written: revision %d", target.Revision())
	}
}

func TestFillDirectory_failure_leavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "storage")
	open := func(string) (journal.Journal, error) { return memory.New(), nil }
	broken := func(yield func(store.Value, error) bool) {
		_ = yield(object(1), nil) && yield(store.Value{}, errors.New("it cannot be read"))
	}
	if _, err := maintenance.FillDirectory(t.Context(), open, dir, 100, broken, false); err == nil {
		t.Error("what cannot be read was restored")
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

func TestFillDirectory_filledMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "storage")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open := func(dir string) (journal.Journal, error) { return embedded.Open(dir, embedded.Options{}) }
	values := func(yield func(store.Value, error) bool) {
		yield(object(1), os.WriteFile(filepath.Join(dir, "theirs"), nil, 0o600))
	}
	if _, err := maintenance.FillDirectory(t.Context(), open, dir, 100, values, false); err == nil {
		t.Error("it was replaced")
	}
	if left, _ := filepath.Glob(dir + "*"); !slices.Equal(left, []string{dir}) {
		t.Errorf("it left %v", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "theirs")); err != nil {
		t.Error(err)
	}
}

// The directory is renamed, and something is put behind its name before.
func TestFillDirectory_pathForms(t *testing.T) {
	open := func(dir string) (journal.Journal, error) { return embedded.Open(dir, embedded.Options{}) }
	values := func(yield func(store.Value, error) bool) { yield(object(1), nil) }
	parent := t.TempDir()
	t.Chdir(parent)
	for _, dir := range []string{"storage", "storage/", "./storage//", "."} {
		if dir == "." {
			t.Chdir("storage")
		}
		done, err := maintenance.FillDirectory(t.Context(), open, dir, 100, values, true)
		if err != nil || done.Objects != 1 {
			t.Fatalf("%s: %+v, %v", dir, done, err)
		}
		t.Chdir(parent)
		if left, err := filepath.Glob("storage/.*"); err != nil || len(left) != 0 {
			t.Errorf("%s: left in it: %v, %v", dir, left, err)
		}
		for _, name := range []string{"storage", done.Aside} {
			if empty, err := maintenance.IsEmpty(name); name != "" && (empty || err != nil) {
				t.Errorf("%s: nothing in %s: %v", dir, name, err)
			}
		}
	}
}
