package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// faultsVariable sets the number of faults that the test below causes; the default is 6.
const faultsVariable = "ANNEX_ETCD_FAULTS"

const (
	loadWriters = 6
	// faultWrites is the number of writes acknowledged while a fault lasts, and again after it.
	faultWrites = 60
	// silentWrites is the number of writes acknowledged while a member is cut off in silence: etcd's client, with
	// upstream's settings, takes up to 40 seconds to notice that, and until then a third of its requests waits.
	silentWrites = 10
)

// fault is a fault of a server or of etcd, with its end.
type fault struct {
	name       string
	writes     int64 // acknowledged while it lasts
	begin, end func()
}

// TestCluster_replicasUnderFaults runs three replicas of a server over three etcd members, each a process that is
// killed, or cut off, while clients write, read and watch.
func TestCluster_replicasUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	rounds := 6
	if text := os.Getenv(faultsVariable); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("%s=%s is no number of faults", faultsVariable, text)
		}
	}
	etcd := startProcesses(t, 3)
	replicas := startReplicas(t, 3, etcd.endpoints())
	underFaults(t, "etcd", len(etcd.members), replicas, rounds, func(round int) fault {
		f := newFault(round, etcd, replicas)
		end := f.end
		f.end = func() {
			end()
			etcd.caughtUp()
		}
		return f
	})
}

// underFaults runs the load on replicas, causes one fault after the other, and prints the losses.
func underFaults(t *testing.T, name string, members int, replicas []*server, rounds int, next func(round int) fault) {
	t.Helper()
	var configs []*rest.Config
	for _, r := range replicas {
		configs = append(configs, r.config())
	}
	l := newLoad(t, configs)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds+2)*patience)
	defer cancel()
	run := startLoad(ctx, l, len(replicas))
	defer run.end()
	run.progress(t, faultWrites)

	for round := range rounds {
		f := next(round)
		began := time.Now()
		f.begin()
		run.progress(t, f.writes)
		during := time.Since(began)
		f.end()
		for _, r := range replicas {
			wantAnswer(t, r.config(), "/readyz", 200)
		}
		run.progress(t, faultWrites)
		t.Logf(
			"%s: %d writes during %v, over after %v",
			f.name,
			f.writes,
			during.Round(time.Millisecond),
			time.Since(began).Round(time.Millisecond),
		)
	}
	r := run.finish(t)
	fmt.Printf(
		"%s faults: %d replicas, %d members, %d faults, %d acknowledged writes, %d lost, %d increments, %d lost, %d lists, %d "+
			"watch events, %d missed; clients saw %s\n",
		name,
		len(replicas),
		members,
		rounds,
		r.writes,
		r.lost,
		l.increments.Load(),
		r.lostIncrements,
		l.lists.Load(),
		r.events,
		r.missed,
		l.refused(),
	)
}

func newFault(round int, etcd *cluster, replicas []*server) fault {
	killReplica := func(r *server) fault {
		return fault{"a replica is killed", faultWrites, r.kill, r.start}
	}
	switch round % 3 {
	case 0:
		return killReplica(replicas[round/3%len(replicas)])
	case 1:
		leader := etcd.leader(anyone)
		return fault{"etcd's leader is killed", faultWrites, leader.kill, leader.start}
	default:
		f := fault{"etcd's leader is cut off", faultWrites, nil, etcd.heal}
		m, silent := etcd.leader(anyone), round/3%2 == 1
		if silent {
			f.name, f.writes = f.name+" in silence", silentWrites
		}
		if round/6%2 == 1 {
			m = etcd.follower(m)
			f.name = strings.Replace(f.name, "etcd's leader", "a follower", 1)
		}
		f.begin = func() {
			etcd.cut(m, !silent)
			etcd.leader(func(asked *clusterMember) bool { return asked != m })
		}
		return f
	}
}

func (c *cluster) follower(leader *clusterMember) *clusterMember {
	for _, m := range c.members {
		if m != leader {
			return m
		}
	}
	return nil
}

// startReplicas starts servers that a client can use interchangeably: the second and later servers begin with the
// first one's certificates, as docs/howto/replicas.md describes.
func startReplicas(t *testing.T, number int, endpoints []string) []*server {
	t.Helper()
	var replicas []*server
	for i := range number {
		r := newServer(t, fmt.Sprintf("replica-%d", i), "--storage", "etcd", "--etcd-servers", strings.Join(endpoints, ","))
		if i > 0 {
			shareCertificates(t, replicas[0], r)
		}
		r.start()
		replicas = append(replicas, r)
	}
	return replicas
}

// shareCertificates copies a replica's certificates to another, with the keys, which only their user may read.
func shareCertificates(t *testing.T, from, to *server) {
	t.Helper()
	certificates := filepath.Join(to.dir, "cert")
	if err := os.CopyFS(certificates, os.DirFS(filepath.Join(from.dir, "cert"))); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(certificates, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o600) // copies are readable by others
	})
	if err != nil {
		t.Fatal(err)
	}
}

// loadRun is a running load.
type loadRun struct {
	load      *load
	stop      chan struct{}
	cancel    context.CancelFunc
	writing   sync.WaitGroup
	running   sync.WaitGroup
	watchers  []*watcher
	informers []*informer
	ended     sync.Once
}

// startLoad begins to write, read and watch at each replica.
func startLoad(ctx context.Context, l *load, replicas int) *loadRun {
	r := &loadRun{load: l, stop: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(ctx)
	var began int64
	for n := range counters {
		created, _ := l.replicas[0].Create(ctx, newWidget(counterName(n)), metav1.CreateOptions{})
		if created == nil {
			l.mistake("%s cannot be created", counterName(n))
			continue
		}
		began = versionOf(created)
	}
	for i := range replicas {
		w := &watcher{load: l, replica: i, last: began}
		r.watchers = append(r.watchers, w)
		r.running.Go(func() { w.run(ctx) })
		for range 2 {
			r.informers = append(r.informers, startInformer(ctx, &r.running, l, l.replicas[i]))
		}
	}
	for i := range loadWriters {
		r.writing.Go(func() { l.write(ctx, r.stop, i) })
	}
	r.running.Go(func() { l.read(ctx) })
	return r
}

// progress waits until more writes have been acknowledged.
func (r *loadRun) progress(t *testing.T, writes int64) {
	t.Helper()
	from := r.load.acknowledged.Load()
	testwait.NoError(t, "writes go on", func(context.Context) error {
		if now := r.load.acknowledged.Load(); now < from+writes {
			return fmt.Errorf("%d writes, not yet %d; clients saw %s", now-from, writes, r.load.refused())
		}
		return nil
	})
}

func (r *loadRun) end() {
	r.ended.Do(func() {
		close(r.stop)
		r.writing.Wait()
	})
	r.cancel()
	r.running.Wait()
}

type loadResult struct {
	writes, lost, lostIncrements, events, missed int
}

// finish stops the writers, and compares everything with everything.
func (r *loadRun) finish(t *testing.T) loadResult {
	t.Helper()
	l, ctx := r.load, t.Context()
	r.ended.Do(func() {
		close(r.stop)
		r.writing.Wait()
	})
	last, _ := l.create(ctx, "last")
	if last == nil {
		t.Fatalf("nothing can be written any more: %v", l.wrong)
	}
	result := loadResult{writes: int(l.acknowledged.Load())}

	stored := map[string]int64{}
	for i, replica := range l.replicas {
		list, err := replica.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		result.lost += l.compare(l.known(), list.Items, fmt.Sprintf("the last list of replica %d", i))
		versions := map[string]int64{}
		for _, item := range list.Items {
			versions[item.GetName()] = versionOf(&item)
		}
		if i > 0 && !maps.Equal(stored, versions) {
			t.Errorf("replica %d lists other objects than replica 0", i)
		}
		stored = versions
	}
	total := 0
	for n := range counters {
		counter, err := l.replicas[0].Get(ctx, counterName(n), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for writer := range loadWriters {
			sum += intOption(counter, fmt.Sprintf("writer-%d", writer))
		}
		if got := intOption(counter, totalOption); got != sum {
			l.mistake("the total of %s is %d, the writers' numbers add up to %d", counterName(n), got, sum)
		}
		total += intOption(counter, totalOption)
	}
	result.lostIncrements = int(l.increments.Load()) - total
	if result.lostIncrements != 0 {
		l.mistake("%d increments were acknowledged, the counters have %d", l.increments.Load(), total)
	}

	for _, w := range r.watchers {
		testwait.NoError(t, "a watch sees the last write", func(context.Context) error { return w.reached(versionOf(last)) })
	}
	for _, i := range r.informers {
		testwait.NoError(t, "an informer holds what is stored", func(context.Context) error { return i.equals(stored) })
	}
	r.end()
	for _, w := range r.watchers {
		result.events += len(w.events)
		result.missed += w.check(l.versions)
		identical(t, r.watchers[0], w)
		t.Logf("a watch: %d events, begun %d times, %d times too old for a replica", len(w.events), w.resumed, w.expired)
	}
	for _, i := range r.informers {
		if i.events == 0 {
			t.Error(errors.New("an informer has told nothing"))
		}
		result.events += i.events
	}
	for _, wrong := range l.wrong {
		t.Error(wrong)
	}
	return result
}
