// Package storetest holds the suites that every storage backend and every journal runs. For a journal they need one
// function, an [OpenJournal]:
//
//   - RunJournal checks the contract of a journal, on its own.
//   - RunStorage and BenchmarkStorage, with AboveJournal, run the API machinery's own
//     storage suite.
//   - RunLinearizable, with StartAboveJournal, compares the responses to concurrent clients
//     with a store that performs one operation after the other; also across crashes.
//   - RunRestart checks the guarantees of the revisioned core across a restart above a
//     durable journal. RunCrash and RunLinearizableKilled do so for killed processes.
//   - RunRecovery checks its guarantees above a journal.Recoverer when a disk fails and
//     heals.
//
// A backend with revisions of its own runs RunStorageWith and RunLinearizable, and, if it supports them,
// RunMaintenance and CheckValues. CountFaults counts the faults that tests inject, and their effects.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
)

// Backend is the subject of the storage suite.
type Backend interface {
	store.Backend
	// Compact makes everything before a revision unreadable.
	Compact(ctx context.Context, revision uint64) error
}

// Needs are the requirements of one test for its backend.
type Needs struct {
	// NothingDecoded keeps the backend from caching decoded objects, because the test makes stored data unreadable
	// behind its back.
	NothingDecoded bool
	// BookmarkInterval is the time between two bookmarks.
	BookmarkInterval time.Duration
	// clusterScoped means that keys have no namespace.
	clusterScoped bool
}

// Traits describe a backend that is not the revisioned core to the suite.
type Traits struct {
	// NotRun maps the functions of the suite that do not apply to the reasons.
	NotRun map[string]string
	// Cached means that lists and watches come from a watch cache.
	Cached bool
	// NoBookmarks means that watches get no bookmark except the one at the end of the initial events.
	NoBookmarks bool
	// NoSizes means that Stats does not know the sizes of objects.
	NoSizes bool
	// NoConditionalWrites means that CreateIf and UpdateIf fail, and write nothing.
	NoConditionalWrites bool
	// NotConditional means that the storage is no store.ConditionalWriter.
	NotConditional bool
	// OneView means that a resource is opened once, so that its view cannot be closed alone.
	OneView bool
	// CompactionRaises means that Compact raises the revision by one.
	CompactionRaises bool
}

// OpenBackend returns an empty backend, which the suite closes.
type OpenBackend func(t testing.TB, needs Needs) Backend

// AboveJournal returns backends that are the revisioned core above journals, each in a directory of its own.
func AboveJournal(open OpenJournal) OpenBackend {
	return func(t testing.TB, needs Needs) Backend {
		options := mvcc.Options{BookmarkInterval: needs.BookmarkInterval}
		if needs.NothingDecoded {
			options.ObjectCacheBytes = -1
		}
		j, err := open(t, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		core, err := mvcc.Open(t.Context(), j, options)
		if err != nil {
			t.Fatal(err)
		}
		return core
	}
}

// PodCodec stores pods of the API machinery's example group as JSON.
func PodCodec() runtime.Codec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)
}

// Pods describes pods of the example group, stored under a prefix.
func Pods(prefix string) store.Resource {
	return store.Resource{
		Resource: schema.GroupResource{Resource: "pods"},
		Prefix:   prefix,
		Codec:    PodCodec(),
		New:      func() runtime.Object { return &example.Pod{} },
		NewList:  func() runtime.Object { return &example.PodList{} },
		KeyFunc: func(object runtime.Object) (string, error) {
			pod := object.(*example.Pod)
			return prefix + "/" + pod.Namespace + "/" + pod.Name, nil
		},
		Attributes: podAttributes,
	}
}

func podAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	pod := object.(*example.Pod)
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
	}, nil
}

func podKey(namespace, name string) string { return fmt.Sprintf("/pods/%s/%s", namespace, name) }
