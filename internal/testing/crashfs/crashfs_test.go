package crashfs

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestCrashClone_duringReuseForWrite(t *testing.T) {
	t.Parallel()
	files := New()
	name := func(i int) string { return fmt.Sprintf("log%d", i) }
	f, err := files.Create(name(0), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				files.CrashClone(vfs.CrashCloneCfg{})
			}
		}
	})
	for i := range 5000 {
		f, err := files.ReuseForWrite(name(i), name(i+1), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	close(done)
	cutting.Wait()
}
