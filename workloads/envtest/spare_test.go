package envtest

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func startBase(t *testing.T) *Environment {
	t.Helper()
	base := &Environment{}
	if _, err := base.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := base.Stop(); err != nil {
			t.Error(err)
		}
	})
	// The only writes of the server itself after its start.
	c := clientOf(t, base)
	testwait.Until(t, "flow schemas have a status", func() bool {
		var all flowcontrolv1.FlowSchemaList
		if err := c.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(all.Items, func(f flowcontrolv1.FlowSchema) bool { return len(f.Status.Conditions) == 0 })
	})
	return base
}

func clientOf(t *testing.T, e *Environment) client.Client {
	t.Helper()
	c, err := client.New(e.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func forkOf(t *testing.T, base *Environment) *Environment {
	t.Helper()
	fork, err := base.Fork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fork.Stop(); err != nil {
			t.Error(err)
		}
	})
	return fork
}

func create(t *testing.T, e *Environment, name string) {
	t.Helper()
	if err := clientOf(t, e).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
		t.Fatal(err)
	}
}

func (e *Environment) names(t *testing.T) map[string]bool {
	t.Helper()
	var all corev1.ConfigMapList
	if err := clientOf(t, e).List(t.Context(), &all, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, configMap := range all.Items {
		names[configMap.Name] = true
	}
	return names
}

func TestEnvironment_Fork_repeated_takesSpare(t *testing.T) {
	base := startBase(t)
	create(t, base, "prepared")
	create(t, forkOf(t, base), "first")
	if base.server.spare != nil {
		t.Error("the first fork prepares another")
	}
	create(t, forkOf(t, base), "second")
	var prepared *spare
	var third *Environment
	for tries := 0; third == nil || third.server != prepared.server; tries++ {
		if tries == 20 {
			t.Fatal("no fork is the prepared one")
		}
		prepared = base.server.spare
		if prepared == nil {
			prepared = spareOf(t, base)
		}
		third = forkOf(t, base)
	}
	create(t, third, "third")
	if names := third.names(t); !names["prepared"] || names["first"] || names["second"] {
		t.Errorf("the third fork has %v; want what is prepared and its own", names)
	}
	if names := forkOf(t, base).names(t); !names["prepared"] || names["third"] {
		t.Errorf("the fourth fork has %v; want what is prepared", names)
	}
}

func TestEnvironment_Fork_afterAWrite_hasIt(t *testing.T) {
	base := startBase(t)
	stale := spareOf(t, base)
	create(t, base, "late")
	if names := forkOf(t, base).names(t); !names["late"] {
		t.Errorf("the fork has %v; want what was written before", names)
	}
	assertStopped(t, stale)
	if base.server.spare != nil {
		t.Error("a fork after a write prepares another")
	}
}

func TestEnvironment_Fork_otherSettings_areHonoured(t *testing.T) {
	base := startBase(t)
	stale := spareOf(t, base)
	<-stale.started
	base.LikeCluster = true
	if fork := forkOf(t, base); fork.server == stale.server {
		t.Error("the fork has the settings of before")
	}
	assertStopped(t, stale)
}

func TestEnvironment_Fork_spareFailed_startsAnother(t *testing.T) {
	base := startBase(t)
	forkOf(t, base)
	failed := &spare{revision: base.server.forked, settings: base.settings(), started: make(chan struct{}), err: errors.New("no port is free")}
	close(failed.started)
	base.server.spare = failed
	forkOf(t, base)
}

func TestEnvironment_Stop_endsSpare(t *testing.T) {
	base := startBase(t)
	unused := spareOf(t, base)
	if err := base.Stop(); err != nil {
		t.Fatal(err)
	}
	assertStopped(t, unused)
}

// spareOf forks an environment until it prepares a spare, which it does after two forks without a write in between: the server
// itself may write after it is ready.
func spareOf(t *testing.T, base *Environment) *spare {
	t.Helper()
	for range 20 {
		forkOf(t, base)
		if base.server.spare != nil {
			return base.server.spare
		}
	}
	t.Fatal("twenty forks have prepared no spare")
	return nil
}

func assertStopped(t *testing.T, p *spare) {
	t.Helper()
	<-p.started
	at, err := url.Parse(p.server.url)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", at.Host); err == nil {
		conn.Close()
		t.Errorf("%s still listens", at.Host)
	}
}
