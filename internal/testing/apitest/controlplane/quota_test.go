package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func amounts(of map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, quantity := range of {
		list[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return list
}

func quotaOf(hard map[string]string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts(hard)}}
}

func printed(list corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		all = append(all, fmt.Sprintf("%s=%s", name, quantity.String()))
	}
	return strings.Join(all, " ")
}

// lab creates a namespace and waits for the objects that every namespace gets.
func lab(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace("lab"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace has what all have", published(client, "lab"))
}

// limit creates a quota and waits until its status is set.
func limit(t *testing.T, core corev1client.CoreV1Interface, q *corev1.ResourceQuota) {
	t.Helper()
	if _, err := core.ResourceQuotas("lab").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the status is known", func(ctx context.Context) error {
		q, err := core.ResourceQuotas("lab").Get(ctx, q.Name, metav1.GetOptions{})
		if err == nil && q.Status.Used == nil {
			err = errors.New("nothing is used yet")
		}
		return err
	})
}

// enforced waits until admission knows the quotas of a namespace. Admission follows quotas by an informer and
// admits every write until the informer has a quota, as in a cluster. The informer gets quotas in the order of
// their creation, so one more quota shows that the earlier quotas have arrived.
func enforced(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	last := quotaOf(map[string]string{"count/leases.coordination.k8s.io": "0"})
	last.Name = "last"
	if _, err := client.CoreV1().ResourceQuotas(namespace).Create(t.Context(), last, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	forbidden(t, client, namespace, last.Name)
}

// forbidden waits until admission knows a quota that forbids leases.
func forbidden(t *testing.T, client kubernetes.Interface, namespace, quota string) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}
	testwait.NoError(t, "the quota "+quota+" is enforced", func(ctx context.Context) error {
		_, err := client.CoordinationV1().Leases(namespace).Create(ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errors.New("a lease is admitted that a quota forbids")
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "quota: "+quota):
			return nil
		}
		return err
	})
}

// uses waits until the quota's status has the given usage.
func uses(t *testing.T, core corev1client.CoreV1Interface, want string) {
	t.Helper()
	testwait.NoError(t, "the quota says "+want, func(ctx context.Context) error {
		q, err := core.ResourceQuotas("lab").Get(ctx, "limits", metav1.GetOptions{})
		if err == nil && printed(q.Status.Used) != want {
			err = fmt.Errorf("it says %s", printed(q.Status.Used))
		}
		return err
	})
}

// admitted retries a write until admission knows the current quotas. Until then the response is a conflict, or an
// error about their unknown status, as in a cluster.
func admitted(t *testing.T, write func(ctx context.Context) error) error {
	t.Helper()
	for {
		err := write(t.Context())
		if !apierrors.IsConflict(err) && (err == nil || !strings.Contains(err.Error(), "status unknown for quota")) {
			return err
		}
	}
}

// configMapIn creates a config map in a namespace.
func configMapIn(core corev1client.CoreV1Interface, namespace, name string, options metav1.CreateOptions) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := core.ConfigMaps(namespace).Create(ctx, configMap(name), options)
		return err
	}
}

func secretIn(core corev1client.CoreV1Interface, namespace, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := core.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
}

func TestQuota_enforced(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	lab(t, client)
	limit(t, core, quotaOf(map[string]string{"configmaps": "3", "count/configmaps": "4"}))
	enforced(t, client, "lab")
	uses(t, core, "configmaps=1 count/configmaps=1")
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for range 5 {
		if err := admitted(t, configMapIn(core, "lab", "dry", dry)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := admitted(t, configMapIn(core, "lab", fmt.Sprint("c", i), metav1.CreateOptions{})); err != nil {
			t.Fatal(err)
		}
	}
	uses(t, core, "configmaps=3 count/configmaps=3")
	for _, options := range []metav1.CreateOptions{{}, dry} {
		err := admitted(t, configMapIn(core, "lab", "beyond", options))
		want := `configmaps "beyond" is forbidden: exceeded quota: limits, requested: configmaps=1, used: configmaps=3, limited: configmaps=3`
		if !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("beyond the quota: %v\nwant %s", err, want)
		}
	}
	// Another namespace has no limits.
	if _, err := core.ConfigMaps("default").Create(t.Context(), configMap("beyond"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	// Existing objects may be changed, and deleted objects release their quota.
	if _, err := core.ConfigMaps("lab").
		Patch(t.Context(), "c0", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if err := core.ConfigMaps("lab").Delete(t.Context(), "c0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, core, "configmaps=2 count/configmaps=2")
	testwait.NoError(t, "there is room", configMapIn(core, "lab", "beyond", metav1.CreateOptions{}))
}

// A quota that is created late, or lowered below the current usage, deletes nothing.
func TestQuota_belowUsage(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	lab(t, client)
	for i := range 4 {
		if err := secretIn(core, "lab", fmt.Sprint("s", i))(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	limit(t, core, quotaOf(map[string]string{"secrets": "10"}))
	enforced(t, client, "lab")
	uses(t, core, "secrets=4")
	if _, err := core.ResourceQuotas("lab").
		Patch(t.Context(), "limits", types.MergePatchType, []byte(`{"spec":{"hard":{"secrets":"2",`+
			`"serviceaccounts":null,"count/serviceaccounts":"9"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, core, "count/serviceaccounts=1 secrets=4")
	err := admitted(t, secretIn(core, "lab", "new"))
	if want := `secrets "new" is forbidden: exceeded quota: limits, requested: secrets=1, used: secrets=4, limited: secrets=2`; err == nil ||
		err.Error() != want {
		t.Errorf("above the quota: %v\nwant %s", err, want)
	}
}

// Resources that only workloads consume have no usage. For a resource without a kind, the status has no usage.
func TestQuota_unknownResources(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	lab(t, client)
	limit(
		t,
		core,
		quotaOf(
			map[string]string{
				"pods":                             "5",
				"requests.cpu":                     "1",
				"services.nodeports":               "1",
				"count/nothings.example.com":       "3",
				"count/events":                     "3",
				"resourcequotas":                   "2",
				"count/leases.coordination.k8s.io": "0",
			},
		),
	)
	forbidden(t, client, "lab", "limits")
	uses(t, core, "count/leases.coordination.k8s.io=0 pods=0 requests.cpu=0 resourcequotas=1 services.nodeports=0")
	scoped := quotaOf(map[string]string{"pods": "5"})
	scoped.Name, scoped.Spec.Scopes = "scoped", []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	limit(t, core, scoped)
	uses(t, core, "count/leases.coordination.k8s.io=0 pods=0 requests.cpu=0 resourcequotas=2 services.nodeports=0")
	third := quotaOf(map[string]string{"pods": "5"})
	third.Name = "third"
	testwait.NoError(t, "a third quota is refused", func(ctx context.Context) error {
		_, err := core.ResourceQuotas("lab").Create(ctx, third, metav1.CreateOptions{})
		switch {
		case err == nil:
			t.Fatal("a third quota was created")
		case !apierrors.IsForbidden(err):
			return err // admission's counts lag behind the controller's
		}
		return nil
	})
}

// A quota may name custom resources before they are defined.
func TestQuota_customResources(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	client, c := kubernetes.NewForConfigOrDie(config), clientsOf(config)
	core := client.CoreV1()
	limits := quotaOf(map[string]string{"count/widgets.stable.example.com": "2"})
	if _, err := core.ResourceQuotas("default").Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.define(t, widgets(sizeAndColor))
	used := func(want int64) {
		t.Helper()
		testwait.NoError(t, fmt.Sprint(want, " widgets are used"), func(ctx context.Context) error {
			q, err := core.ResourceQuotas("default").Get(ctx, "limits", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if n, known := q.Status.Used["count/widgets.stable.example.com"]; !known || n.Value() != want {
				return fmt.Errorf("used are %s", printed(q.Status.Used))
			}
			return nil
		})
	}
	widgetNamed := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.widgets.Create(ctx, widget(name, nil), metav1.CreateOptions{})
			return err
		}
	}
	used(0)
	enforced(t, client, "default")
	for i := range 2 {
		if err := admitted(t, widgetNamed(fmt.Sprint("w", i))); err != nil {
			t.Fatal(err)
		}
	}
	used(2)
	if err := admitted(t, widgetNamed("beyond")); !apierrors.IsForbidden(err) {
		t.Errorf("a third widget: %v", err)
	}
	if err := c.widgets.Delete(t.Context(), "w0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(1)
}

// Admitted objects that are not stored in the end are not counted for long.
func TestQuota_failedCreates(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	lab(t, client)
	limit(t, core, quotaOf(map[string]string{"configmaps": "5"}))
	enforced(t, client, "lab")
	for range 3 {
		if err := admitted(t, configMapIn(core, "lab", rootCA, metav1.CreateOptions{})); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("one that is there: %v", err)
		}
	}
	uses(t, core, "configmaps=1")
	testwait.NoError(t, "there is room", configMapIn(core, "lab", "new", metav1.CreateOptions{}))
	uses(t, core, "configmaps=2")
}

func TestQuota_concurrentCreates(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	lab(t, client)
	limit(t, core, quotaOf(map[string]string{"count/secrets": "20"}))
	enforced(t, client, "lab")
	var created atomic.Int32
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			err := admitted(t, secretIn(core, "lab", fmt.Sprint("s", i)))
			switch {
			case err == nil:
				created.Add(1)
			case !apierrors.IsForbidden(err):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if created.Load() != 20 {
		t.Errorf("%d were created, want 20", created.Load())
	}
	uses(t, core, "count/secrets=20")
}

func TestWithout_quotas(t *testing.T) {
	t.Parallel()
	config := annextest.StartWith(
		t,
		cluster(),
		annex.Options{Storage: memory.Storage(), Admission: annex.AdmissionOptions{DisablePlugins: []string{"ResourceQuota"}}},
	)
	client := kubernetes.NewForConfigOrDie(config)
	core := client.CoreV1()
	lab(t, client)
	limit(t, core, quotaOf(map[string]string{"configmaps": "0"}))
	if _, err := core.ConfigMaps("lab").Create(t.Context(), configMap("beyond"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	uses(t, core, "configmaps=2")
}

// An object that is admitted but not stored yet keeps its share of the quota, even if the quota is counted
// meanwhile.
func TestQuota_createInFlight(t *testing.T) {
	t.Parallel()
	held, release := make(chan struct{}), make(chan struct{})
	server := cluster()
	server.Groups = append(server.Groups, annex.Group{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[shopv1.Widget, shopv1.WidgetList]("widgets", shopv1.API).
			AdmitCreate(func(_ context.Context, r annex.Request[shopv1.Widget], _ []*shopv1.Widget) error {
				if r.Name == "slow" {
					close(held)
					<-release
				}
				return nil
			}),
	}})
	config := annextest.Start(t, server)
	client := kubernetes.NewForConfigOrDie(config)
	core := client.CoreV1()
	resource := schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}
	slow := dynamic.NewForConfigOrDie(config).Resource(resource).Namespace("lab")
	create := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := slow.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "shop.example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": "small"},
			}}, metav1.CreateOptions{})
			return err
		}
	}
	lab(t, client)
	limit(t, core, quotaOf(map[string]string{"count/widgets.shop.example.com": "2"}))
	enforced(t, client, "lab")
	if err := admitted(t, create("first")); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() { created <- admitted(t, create("slow")) }()
	select {
	case <-held:
	case err := <-created:
		t.Fatalf("the create was not held: %v", err)
	case <-time.After(testwait.Patience):
		t.Fatal("the create was not admitted")
	}
	uses(t, core, "count/widgets.shop.example.com=2")
	now, err := core.ResourceQuotas("lab").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	options := metav1.ListOptions{FieldSelector: "metadata.name=limits", ResourceVersion: now.ResourceVersion}
	events, err := core.ResourceQuotas("lab").Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if err := slow.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	const want = "count/widgets.shop.example.com=1"
	for used := ""; used != want; {
		select {
		case event := <-events.ResultChan():
			q, ok := event.Object.(*corev1.ResourceQuota)
			if !ok {
				t.Fatalf("the watch ended: %v", event)
			}
			if used = printed(q.Status.Used); used == "count/widgets.shop.example.com=0" {
				t.Fatal("the room of an object in flight was given away")
			}
		case <-time.After(testwait.Patience):
			t.Fatal("the deletion was not counted")
		}
	}
	close(release)
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the room of the deleted object", create("second")) // admission may see the count a moment later
	if err := admitted(t, create("third")); !apierrors.IsForbidden(err) {
		t.Errorf("beyond the quota: %v", err)
	}
	uses(t, core, "count/widgets.shop.example.com=2")
}

// Clients create and delete objects, and the server is killed, ANNEX_CRASH_KILLS times. There are never more
// objects than the quota permits.
func TestQuota_kills(t *testing.T) {
	t.Parallel()
	for name, storage := range map[string]annex.Storage{"embedded": embedded.Dir(""), "files": files.Dir("")} {
		t.Run(name, func(t *testing.T) {
			if dir := os.Getenv(victimEnv); dir != "" {
				serveUntilKilled(t, dir, storage)
			}
			quotaUnderKills(t)
		})
	}
}

const secretsLimit = 10

func quotaUnderKills(t *testing.T) {
	dir, random := t.TempDir(), storetest.Seeded(t)
	v := startVictim(t, dir)
	client := kubernetes.NewForConfigOrDie(v.config)
	lab(t, client)
	limit(t, client.CoreV1(), quotaOf(map[string]string{"count/secrets": fmt.Sprint(secretsLimit)}))
	enforced(t, client, "lab")
	for range storetest.Trials(t, "ANNEX_CRASH_KILLS", 3) {
		churn(t, client.CoreV1(), random, func() { v.kill(t) })
		v = startVictim(t, dir)
		client = kubernetes.NewForConfigOrDie(v.config)
	}
	secrets, err := client.CoreV1().Secrets("lab").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uses(t, client.CoreV1(), fmt.Sprintf("count/secrets=%d", len(secrets.Items)))
	v.kill(t)
}

// churn writes until the server is killed, after a random number of responses.
func churn(t *testing.T, core corev1client.CoreV1Interface, random *rand.Rand, kill func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	left := atomic.Int64{}
	left.Store(200 + random.Int64N(400))
	enough := make(chan struct{})
	var all sync.WaitGroup
	for range 16 {
		own := rand.New(rand.NewPCG(random.Uint64(), 0))
		all.Go(func() {
			for answered := true; answered && ctx.Err() == nil; {
				answered = writeOne(ctx, core, fmt.Sprint("s", own.IntN(40)), own.IntN(3) == 0)
				if left.Add(-1) == 0 {
					close(enough)
				}
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			secrets, err := core.Secrets("lab").List(ctx, metav1.ListOptions{})
			if err != nil {
				return // the server has been killed
			}
			if n := len(secrets.Items); n > secretsLimit {
				t.Errorf("there are %d secrets, and the quota allows %d", n, secretsLimit)
				return
			}
		}
	})
	select {
	case <-enough:
	case <-time.After(testwait.Patience):
		t.Error("the server does not answer")
	}
	kill()
	stop()
	all.Wait()
}

// writeOne creates or deletes a secret, and reports whether the server responded.
func writeOne(ctx context.Context, core corev1client.CoreV1Interface, name string, deletes bool) bool {
	write := secretIn(core, "lab", name)
	if deletes {
		write = func(ctx context.Context) error { return core.Secrets("lab").Delete(ctx, name, metav1.DeleteOptions{}) }
	}
	err := write(ctx)
	return err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown
}
