package envtest_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/workloads/envtest"
)

// setting returns a number of the environment, by which make planes makes the test larger.
func setting(t *testing.T, name string, usual int) int {
	t.Helper()
	text, ok := os.LookupEnv(name)
	if !ok {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number above 0", name, text)
	}
	return n
}

// All control planes run at the same time, and each has its own objects beside those of the base.
func TestEnvironment_manyForks_arePrivate(t *testing.T) {
	planes, prepared := setting(t, "ANNEX_PLANES", 4), setting(t, "ANNEX_PLANE_OBJECTS", 10)
	base := &envtest.Environment{}
	c := start(t, base)
	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"name": name}}
	}
	for i := range prepared {
		if err := c.Create(t.Context(), configMap(fmt.Sprintf("prepared-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	began, goroutines := time.Now(), runtime.NumGoroutine()
	clients := make([]client.Client, planes)
	for i := range clients {
		fork, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := fork.Stop(); err != nil {
				t.Error(err)
			}
		})
		if clients[i], err = client.New(fork.Config, client.Options{}); err != nil {
			t.Fatal(err)
		}
		if err := clients[i].Create(t.Context(), configMap(fmt.Sprintf("own-%d", i))); err != nil {
			t.Fatalf("fork %d: %v", i, err)
		}
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%d forks of %d objects: %s each, %.1f MB of heap each, %d goroutines each", planes, prepared,
		time.Since(began)/time.Duration(planes), float64(memory.HeapInuse)/1e6/float64(planes+1), (runtime.NumGoroutine()-goroutines)/planes)
	for i, own := range clients {
		var all corev1.ConfigMapList
		if err := own.List(t.Context(), &all, client.InNamespace("default")); err != nil || len(all.Items) != prepared+1 {
			t.Errorf("fork %d: %d objects, %v; want %d", i, len(all.Items), err, prepared+1)
		}
		if err := own.Get(t.Context(), client.ObjectKeyFromObject(configMap(fmt.Sprintf("own-%d", i))), &corev1.ConfigMap{}); err != nil {
			t.Errorf("fork %d: its own object: %v", i, err)
		}
	}
}
