package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/store"
)

const prefix = "/pods"

// groups is the number of values of the labels and fields for selections: one value selects 1 %.
const groups = 100

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	install.Install(scheme)
	return scheme
}

// pods describes the resource, without indexes, stored as JSON. Every backend uses the codec of our servers.
func pods() store.Resource { return podsAs(runtime.ContentTypeJSON) }

// podsAs is pods stored in another media type.
func podsAs(mediaType string) store.Resource {
	scheme := newScheme()
	return store.Resource{
		Resource: examplev1.Resource("pods"),
		Prefix:   prefix,
		Codec:    convert.NewStorageCodec(scheme, serializer.NewCodecFactory(scheme), examplev1.SchemeGroupVersion, mediaType),
		New:      func() runtime.Object { return &example.Pod{} },
		NewList:  func() runtime.Object { return &example.PodList{} },
		KeyFunc: func(object runtime.Object) (string, error) {
			pod := object.(*example.Pod)
			return key(pod.Namespace, pod.Name), nil
		},
		Attributes: attributes,
	}
}

// indexedPods are indexed as kube-apiserver indexes pods, and by the label group.
func indexedPods() store.Resource {
	resource := pods()
	resource.Indexers = &cache.Indexers{
		storage.FieldIndex("spec.nodeName"): func(object any) ([]string, error) {
			return []string{object.(*example.Pod).Spec.NodeName}, nil
		},
		storage.FieldIndex("metadata.namespace"): func(object any) ([]string, error) { return []string{object.(*example.Pod).Namespace}, nil },
		storage.LabelIndex("group"): func(object any) ([]string, error) {
			return []string{object.(*example.Pod).Labels["group"]}, nil
		},
	}
	return resource
}

func attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	pod := object.(*example.Pod)
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
	}, nil
}

func key(namespace, name string) string { return prefix + "/" + namespace + "/" + name }

// newPod returns the i-th pod, whose JSON has about the given size: a kilobyte of typical metadata, and beyond that
// the content that makes objects large in practice, more managers and a last applied configuration.
func newPod(i, size int) *example.Pod {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	pod := &example.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         fmt.Sprintf("team-%02d", i%50),
			Name:              fmt.Sprintf("web-%08x-%07d", random.Uint32(), i),
			UID:               types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", random.Uint32(), random.Uint64()>>16)),
			CreationTimestamp: metav1.Unix(1760000000+int64(i), 0),
			Labels: map[string]string{
				"app": "web", "tier": "front", "group": fmt.Sprintf("group-%02d", i%groups), "release": fmt.Sprintf("r%d", i%7),
			},
			Annotations: map[string]string{"example.com/checksum": fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "6f1c2f0e-0000-4000-8000-000000000000"},
			},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kubectl")},
		},
		Spec: example.PodSpec{NodeName: fmt.Sprintf("node-%02d", i/groups%groups), RestartPolicy: "Always"},
	}
	if size > 2<<10 {
		for _, manager := range []string{"controller", "scheduler", "autoscaler", "mesh", "policy", "backup", "audit"} {
			pod.ManagedFields = append(pod.ManagedFields, managed(manager))
		}
	}
	if missing := size - len(encoded(pod)); missing > 40 {
		pod.Annotations["example.com/last-applied"] = text(random, missing-40)
	}
	return pod
}

func managed(manager string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager:    manager,
		Operation:  metav1.ManagedFieldsOperationApply,
		APIVersion: "example.apiserver.k8s.io/v1",
		FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(
			`{"f:metadata":{"f:annotations":{".":{},"f:example.com/checksum":{}},"f:labels":{".":{},` +
				`"f:app":{},"f:tier":{}}},"f:spec":{"f:nodeName":{},"f:restartPolicy":{}}}`,
		),
	}
}

var defaultCodec = sync.OnceValue(func() runtime.Codec { return pods().Codec })

func encoded(pod *example.Pod) []byte {
	data, err := runtime.Encode(defaultCodec(), pod)
	if err != nil {
		panic(err)
	}
	return data
}

// text returns words with some numbers, which compress like configuration does.
func text(random *rand.Rand, length int) string {
	words := strings.Fields("image replicas template container port env value limit request memory cpu volume mount probe path secret " +
		"config name")
	var b strings.Builder
	for b.Len() < length {
		fmt.Fprintf(&b, "%s:%04x ", words[random.IntN(len(words))], random.IntN(1<<16))
	}
	return b.String()[:length]
}

// create stores the pods from first on, by a number of concurrent writers. The pods are made beforehand in pieces, so
// that only storing them is measured.
func create(b *testing.B, s storage.Interface, first, count, size, writers int, paused func(prepare func())) {
	const piece = 20_000
	for done := 0; done < count; done += piece {
		objects := make([]*example.Pod, min(piece, count-done))
		paused(func() {
			for i := range objects {
				objects[i] = newPod(first+done+i, size)
			}
		})
		var next atomic.Int64
		var writing sync.WaitGroup
		for range writers {
			writing.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(objects)); i = next.Add(1) - 1 {
					pod := objects[i]
					if err := s.Create(b.Context(), key(pod.Namespace, pod.Name), pod, &example.Pod{}, 0); err != nil {
						b.Errorf("create %s: %v", pod.Name, err)
						return
					}
				}
			})
		}
		writing.Wait()
	}
	if b.Failed() {
		b.FailNow()
	}
}

// load is create without any measurement.
func load(b *testing.B, s storage.Interface, count, size int) {
	create(b, s, 0, count, size, 64, func(prepare func()) { prepare() })
}

// pause excludes the time of prepare from the measurement.
func (m *meter) pause(prepare func()) {
	start, cpu := time.Now(), m.system.cpuTime(m.b)
	prepare()
	m.start = m.start.Add(time.Since(start))
	m.cpu += m.system.cpuTime(m.b) - cpu
}

// scaled returns a number of operations, a tenth with -short.
func scaled(n int) int {
	if testing.Short() {
		return max(1, n/10)
	}
	return n
}
