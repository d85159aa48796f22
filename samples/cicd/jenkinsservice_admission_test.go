package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
)

// isOverQuota reports whether the quota refused a create.
func isOverQuota(err error) bool {
	return apierrors.IsForbidden(err) &&
		strings.Contains(err.Error(), "at most 10 JenkinsServices may exist in the whole server, and there are 10")
}

func count(t *testing.T, a *api) int {
	t.Helper()
	return len(must(a.list(context.Background()))(t).Items)
}

func TestQuota_concurrentCreates(t *testing.T) {
	t.Parallel()
	a := start(t)
	other := &api{a.RESTClient, "other"}
	namespace := []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other"}}`)
	if err := a.Post().
		AbsPath("/api/v1/namespaces").
		SetHeader("Content-Type", "application/json").
		Body(namespace).
		Do(t.Context()).
		Error(); err != nil {
		t.Fatal(err)
	}
	var made, refused atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		in := []*api{a, other}[i%2]
		all.Go(func() {
			switch _, err := in.create(t.Context(), fmt.Sprint("j", i), small); {
			case err == nil:
				made.Add(1)
			case isOverQuota(err):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(t, a); n != 10 || made.Load() != 10 || refused.Load() != 40 {
		t.Errorf("%d exist, %d were made, %d refused; want 10, 10 and 40", n, made.Load(), refused.Load())
	}
}

func TestQuota_applyAndUpdate(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	for i := range 9 {
		must(a.create(ctx, fmt.Sprint("j", i), small))(t)
	}
	must(a.create(ctx, "dry", small, "dryRun"))(t)
	apply := func(name string) error {
		body := fmt.Sprintf(
			`{"apiVersion":"autobusi.group.cicd/v1alpha","kind":"JenkinsService","metadata":{"name":%q},`+
				`"spec":{"instanceamount":1,"instancecpu":1}}`,
			name,
		)
		return a.namespaced(a.Patch(types.ApplyPatchType)).
			Name(name).
			Param("fieldManager", "test").
			Param("force", "true").
			Body([]byte(body)).
			Do(ctx).
			Error()
	}
	if err := apply("tenth"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.create(ctx, "eleventh", small); !isOverQuota(err) {
		t.Errorf("create: %v", err)
	}
	if _, err := a.create(ctx, "eleventh", small, "dryRun"); !isOverQuota(err) {
		t.Errorf("create in a dry run: %v", err)
	}
	if err := apply("eleventh"); !isOverQuota(err) {
		t.Errorf("apply: %v", err)
	}
	// Existing objects may still be written.
	if err := apply("tenth"); err != nil {
		t.Errorf("apply of what is there: %v", err)
	}
	must(a.patch(ctx, "j0", `{"spec":{"instanceamount":2}}`))(t)
	if _, err := a.create(ctx, "j0", small); !apierrors.IsAlreadyExists(err) {
		t.Errorf("create of what is there: %v", err)
	}
	// A JenkinsService that is being drained counts until it is gone.
	must(a.patch(ctx, "j0", `{"metadata":{"finalizers":["example.com/stay"]}}`))(t)
	if err := a.delete(ctx, "j0"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.create(ctx, "eleventh", small); !isOverQuota(err) {
		t.Errorf("create beside one that is being deleted: %v", err)
	}
	must(a.patch(ctx, "j0", `{"metadata":{"finalizers":null}}`))(t)
	must(a.create(ctx, "eleventh", small))(t)
}

// Every writer succeeds eventually, and at most ten objects exist at any time.
func TestQuota_concurrentDeletes(t *testing.T) {
	t.Parallel()
	const writers, rounds = 14, 5
	a := start(t)
	ctx := t.Context()
	w := a.watch(t)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			name := fmt.Sprint("j", i)
			for range rounds {
				for {
					_, err := a.create(ctx, name, small)
					if err == nil {
						break
					}
					if !isOverQuota(err) {
						t.Error(err)
						return
					}
				}
				if err := a.delete(ctx, name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for live, created := 0, 0; created < writers*rounds || live > 0; {
		switch e := <-w.ResultChan(); e.Type {
		case watch.Added:
			live++
			created++
		case watch.Deleted:
			live--
		default:
			t.Fatalf("%v", e)
		}
		if live > maxJenkinsServices {
			t.Fatalf("%d at a time", live)
		}
	}
}

// A server that is killed during creates leaves only whole objects. It leaves neither too many objects nor places
// without an object.
func TestQuota_killedServer(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	serve := func() (*process, *api) {
		p := startProgram(t, "serve", "--data-dir", data, "--secure-port", "0", "--controllers=")
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		config.QPS = -1
		return p, newAPI(t, config)
	}
	for round := range 4 {
		p, a := serve()
		ctx, end := context.WithTimeout(t.Context(), 30*time.Second)
		var all sync.WaitGroup
		after := int32(rand.IntN(8)) // creates before the kill
		var made atomic.Int32
		for i := range 30 {
			all.Go(func() {
				if _, err := a.create(ctx, fmt.Sprintf("r%d-%d", round, i), small); err == nil && made.Add(1) == after+1 {
					p.kill()
					end()
				}
			})
		}
		all.Wait()
		p.kill()
		end()

		p, a = serve()
		there := count(t, a)
		if there > maxJenkinsServices || there < int(min(made.Load(), after)) {
			t.Errorf("%d exist after %d were acknowledged", there, made.Load())
		}
		for i := there; i < maxJenkinsServices; i++ {
			must(a.create(t.Context(), fmt.Sprintf("f%d-%d", round, i), small))(t)
		}
		if _, err := a.create(t.Context(), "eleventh", small); !isOverQuota(err) {
			t.Errorf("the eleventh: %v", err)
		}
		if err := a.namespaced(a.Delete()).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		p.kill()
	}
}
