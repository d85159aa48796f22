// Package ginkgo_test is a suite of Ginkgo whose processes each have a control plane of their own. make ginkgo runs it with -p,
// with one plane for all specs of a process, and with a fork of that plane for each spec.
package ginkgo_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/workloads/envtest"
)

var (
	forks    = flag.Bool("forks", false, "give each spec a fork of the process's control plane")
	prepared = flag.Int("prepared", 1000, "the `number` of ConfigMaps that the control planes begin with")
)

// base is the control plane of this process.
var base *envtest.Environment

const (
	shop = "shop"
	// wait bounds what controllers do.
	wait = 30 * time.Second
)

func TestParallel_specsOfProcesses(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "control planes of processes")
}

// The first process prepares the objects once. All processes, the first one too, begin with its snapshot.
var _ = SynchronizedBeforeSuite(func(ctx SpecContext) []byte {
	first := start("")
	api := clientOf(first)
	Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})).To(Succeed())
	for i := range *prepared {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: fmt.Sprintf("prepared-%d", i)}}
		Expect(api.Create(ctx, object)).To(Succeed())
	}
	snapshot := filepath.Join(GinkgoT().TempDir(), "prepared.snapshot")
	Expect(first.WriteSnapshot(snapshot)).To(Succeed())
	Expect(first.Stop()).To(Succeed())
	return []byte(snapshot)
}, func(snapshot []byte) {
	began := time.Now()
	base = start(string(snapshot))
	DeferCleanup(base.Stop)
	AddReportEntry("start of the process's control plane", time.Since(began).String(), ReportEntryVisibilityNever)
})

func start(snapshot string) *envtest.Environment {
	GinkgoHelper()
	e := &envtest.Environment{LikeCluster: true, Snapshot: snapshot}
	_, err := e.Start()
	Expect(err).NotTo(HaveOccurred())
	return e
}

func clientOf(e *envtest.Environment) client.Client {
	GinkgoHelper()
	api, err := client.New(e.Config, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())
	return api
}
