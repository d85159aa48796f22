// Package storetest holds the suites that every storage backend and every
// journal runs. For a journal they need one function, an [OpenJournal]:
//
//   - RunJournal is the contract of a journal, on its own.
//   - RunStorage and BenchmarkStorage, with AboveJournal, are the API machinery's own
//     storage suite.
//   - RunLinearizable, with StartAboveJournal, compares what concurrent clients were told
//     with a store that does one thing after the other; also across crashes.
//   - RunRestart is what the revisioned core promises across a restart above a
//     durable journal. RunCrash and RunLinearizableKilled are that for processes that are
//     killed.
//   - RunRecovery is what it promises above a journal.Recoverer when a disk fails and
//     becomes well again.
//
// A backend with revisions of its own runs RunStorageWith and RunLinearizable, and
// RunMaintenance and CheckValues if it can. CountFaults counts what fault tests inject and
// find.
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

// Backend is what the storage suite runs against.
type Backend interface {
	store.Backend
	// Compact makes everything before a revision unreadable.
	Compact(ctx context.Context, revision uint64) error
}

// Needs is what one test wants of its backend.
type Needs struct {
	// NothingDecoded keeps the backend from remembering decoded objects, because
	// the test makes stored data unreadable behind its back.
	NothingDecoded bool
	// BookmarkInterval is the time between two bookmarks.
	BookmarkInterval time.Duration
	// clusterScoped says that keys have no namespace.
	clusterScoped bool
}

// Traits are what the suite has to know of a backend that is not the revisioned
// core.
type Traits struct {
	// NotRun names functions of the suite that do not apply, each with the reason.
	NotRun map[string]string
	// Cached says that lists and watches come from a watch cache.
	Cached bool
	// NoBookmarks says that watches get none but the one that ends the initial
	// events.
	NoBookmarks bool
	// NoSizes says that Stats does not know how large objects are.
	NoSizes bool
	// NoConditionalWrites says that CreateIf and UpdateIf fail, and write nothing.
	NoConditionalWrites bool
	// NotConditional says that the storage is no store.ConditionalWriter.
	NotConditional bool
	// OneView says that a resource is opened once, and so its view cannot be closed alone.
	OneView bool
	// CompactionRaises says that Compact raises the revision by one.
	CompactionRaises bool
}

// OpenBackend returns an empty backend, which the suite closes.
type OpenBackend func(t testing.TB, needs Needs) Backend

// AboveJournal returns backends that are the revisioned core above journals, each in a
// directory of its own.
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
