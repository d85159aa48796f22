package files_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/internal/testing/crashfs"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/storetest"
)

// memory is a file system in memory for a tree in /root. It does not support swapping files.
type memory struct{ vfs.FS }

func (m memory) path(name string) string { return m.PathJoin("/", "root", name) }

func (m memory) Create(name string) (files.File, error) {
	file, err := m.FS.Create(m.path(name), vfs.WriteCategoryUnspecified)
	return memoryFile{file}, err
}

func (m memory) Open(name string) (io.ReadCloser, error) { return m.FS.Open(m.path(name)) }

func (m memory) Rename(oldName, newName string) error {
	return m.FS.Rename(m.path(oldName), m.path(newName))
}

func (m memory) RenameNew(string, string) error        { return errors.ErrUnsupported }
func (m memory) Exchange(string, string) error         { return errors.ErrUnsupported }
func (m memory) Remove(name string) error              { return m.FS.Remove(m.path(name)) }
func (m memory) Mkdir(name string) error               { return m.FS.MkdirAll(m.path(name), 0o700) }
func (m memory) Stat(name string) (fs.FileInfo, error) { return m.FS.Stat(m.path(name)) }
func (m memory) Lock(name string) (io.Closer, error)   { return m.FS.Lock(m.path(name)) }

func (m memory) List(name string) ([]fs.DirEntry, error) {
	names, err := m.FS.List(m.path(name))
	if err != nil {
		return nil, err
	}
	var list []fs.DirEntry
	for _, base := range names {
		info, err := m.FS.Stat(m.PathJoin(m.path(name), base))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, fs.FileInfoToDirEntry(info))
	}
	return list, nil
}

func (m memory) SyncDir(name string) error {
	dir, err := m.OpenDir(m.path(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

type memoryFile struct{ vfs.File }

func (f memoryFile) Stat() (fs.FileInfo, error) { return f.File.Stat() }

// differ returns the difference between the files of a tree in memory and objects; nil if there is none.
func (m memory) differ(objects map[string]string) error {
	for n := range 3 {
		namespace := fmt.Sprintf("ns%d", n)
		list, err := m.List("core/pods/" + namespace)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, item := range list {
			if key := podKey(namespace, strings.TrimSuffix(item.Name(), ".yaml")); objects[key] == "" {
				return fmt.Errorf("%s has a file and is not an object", key)
			}
		}
	}
	for key, value := range objects {
		file, err := m.Open("core" + key + ".yaml")
		if err != nil {
			return err
		}
		text, err := io.ReadAll(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		_, content, _ := strings.Cut(value, `"content":"`)
		content, _, _ = strings.Cut(content, `"`)
		if !strings.Contains(string(text), "content: "+content+"\n") {
			return fmt.Errorf("%s does not say %s:\n%s", key, content, text)
		}
	}
	return nil
}

// TestFiles_afterPowerCuts_equalRecords cuts the power under a server that writes objects and files, ANNEX_POWER_CUTS
// times: a random part of the unsynced data is lost. The next server must take none of the remaining files for an
// edit.
func TestFiles_afterPowerCuts_equalRecords(t *testing.T) {
	rng := storetest.Seeded(t)
	disk := crashfs.New()
	if err := disk.MkdirAll("/root", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (memory{disk}).SyncDir(".."); err != nil {
		t.Fatal(err)
	}
	cuts := storetest.Trials(t, "ANNEX_POWER_CUTS", 10)
	for i := range cuts {
		// Each cut is a test of its own, so that its temporary data is not kept until all are done.
		ok := t.Run(fmt.Sprintf("cut %d", i+1), func(t *testing.T) { disk = cutPower(t, rng, disk) })
		if !ok {
			return
		}
	}
	fmt.Printf("faults (files projected): %d power cuts, 0 edits that no person made, 0 files that differ\n", cuts)
}

// cutPower cuts the power under a server, and returns the file system as the next server has left it.
func cutPower(t *testing.T, rng *rand.Rand, disk crashfs.FS) crashfs.FS {
	options := func() files.Options {
		return files.Options{FS: memory{disk}, Embedded: embedded.Options{FS: disk, MemTableSize: 256 << 10}}
	}
	s := serve(t, "/root", options())
	var writers sync.WaitGroup
	cut := make(chan struct{})
	promised := map[string]uint64{}
	var mu sync.Mutex
	for range 3 {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-cut:
					return
				default:
				}
				key, value := randomChange(own, fmt.Sprintf("c%d-%d", own.Uint64(), n))
				if err := s.tryPut(key, value); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				promised[key]++
				mu.Unlock()
			}
		})
	}
	enough := 1 + rng.IntN(60)
	testwait.Until(t, "there are some writes", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(promised) >= min(enough, 20)
	})
	after := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	close(cut)
	writers.Wait()
	s.stop()

	disk = after
	s = serve(t, "/root", options())
	var last error
	testwait.Until(t, "the files say the same as the store", func() bool {
		last = memory{disk}.differ(s.objects())
		return last == nil
	})
	if s.edits != 0 || len(s.Problems()) != 0 {
		t.Fatalf("%d edits, problems %v", s.edits, s.Problems())
	}
	s.stop()
	return disk
}
