package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

const handlesEnv = "ANNEX_TEST_HANDLES"

// TestRecover_noFileHandles runs itself again in a process that may open few files.
func TestRecover_noFileHandles(t *testing.T) {
	if os.Getenv(handlesEnv) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		child.Env = append(os.Environ(), handlesEnv+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	j, err := embedded.Open(t.TempDir(), embedded.Options{MemTableSize: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	pods, err := core.Open(storetest.Pods("/pods"))
	if err != nil {
		t.Fatal(err)
	}
	var acknowledged int
	create := func() error {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", acknowledged)}}
		pod.Annotations = map[string]string{"padding": string(bigRecord(uint64(acknowledged + 1)).Value)}
		err := pods.Create(t.Context(), "/pods/ns/"+pod.Name, pod, &example.Pod{}, 0)
		if err == nil {
			acknowledged++
		}
		return err
	}

	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 128, Max: 128}); err != nil {
		t.Fatal(err)
	}
	var hoard []*os.File
	for {
		file, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		hoard = append(hoard, file)
	}
	// The next log is a new file.
	var failed error
	for range 10_000 {
		if failed = create(); failed != nil {
			break
		}
	}
	if !errors.Is(core.Health(), journal.ErrTransient) || !errors.Is(core.Health(), syscall.EMFILE) {
		t.Fatalf("health: %v, the last write: %v", core.Health(), failed)
	}
	for range 10 {
		clock.Step(time.Second)
		runtime.Gosched()
	}
	for _, file := range hoard {
		file.Close()
	}
	testwait.NoError(t, "the core recovers", func(context.Context) error {
		clock.Step(time.Second)
		return core.Health()
	})
	// The failed write may turn out to be durable.
	if err := create(); storage.IsExist(err) {
		acknowledged++
	} else if err != nil {
		t.Fatal(err)
	}
	list := &example.PodList{}
	if err := pods.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != acknowledged {
		t.Errorf("%d objects, want %d", len(list.Items), acknowledged)
	}
}
