package annextest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
)

func cluster() annex.Server {
	return annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{})}
}

// wholeOf returns the file that a logged report names.
func wholeOf(t *testing.T, screen string) string {
	t.Helper()
	_, place, ok := strings.Cut(screen, "the whole report: ")
	if !ok {
		t.Fatalf("the report names no file:\n%s", screen)
	}
	text, err := os.ReadFile(place)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// contain fails the test for each line that a text has not.
func contain(t *testing.T, where, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line) {
			t.Errorf("%s has no %q:\n%s", where, line, text)
		}
	}
}

func TestReport_ofAFailure(t *testing.T) {
	config := annextest.Start(t, cluster())
	before, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	maps := before.CoreV1().ConfigMaps("default")
	for _, name := range []string{"old", "gone"} {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1", "b.c": "2"}}
		if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var faults annextest.Faults
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(media, func(t *testing.T) {
			d := run(func(d *double) {
				report := &annextest.Report{Dir: t.TempDir()}
				config := rest.CopyConfig(config)
				config.ContentType, config.AcceptContentTypes, config.UserAgent = media, media, "manager/v1 (linux)"
				client, err := kubernetes.NewForConfig(report.Wrap(faults.Wrap(config)))
				if err != nil {
					t.Fatal(err)
				}
				report.OnFailure(d)
				maps := client.CoreV1().ConfigMaps("default")
				old, err := maps.Get(ctx, "old", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				changed := old.DeepCopy()
				changed.Data = map[string]string{"a": "3", "d": "4"}
				if changed, err = maps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err = maps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if _, err = maps.Update(ctx, old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
						t.Fatal(err)
					}
				}
				faults.On(t, "patch", "configmaps").First(1).InternalError()
				patch := []byte(`{"data": {"e": "5"}}`)
				if _, err := maps.Patch(ctx, "old", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsInternalError(err) {
					t.Fatal(err)
				}
				_, err = client.CoreV1().Events("default").Create(ctx, &corev1.Event{
					ObjectMeta:     metav1.ObjectMeta{Name: "e"},
					InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "old"},
					Type:           "Warning", Reason: "TooOld", Message: "it is too old", Count: 2,
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := maps.Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					GenerateName: "kept-", Labels: map[string]string{"kube-aggregator.kubernetes.io/automanaged": "onstart"},
				}}
				if _, err := before.CoreV1().ConfigMaps("default").Create(ctx, kept, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				d.Errorf("broken")
			})
			screen := d.said[1]
			contain(t, "the screen", screen,
				"report of TestX/a case: 10 requests, 3 conflicts, 1 other error, 1 injected fault, all by ", " manager\n",
				"update configmaps default/old: 200, ", "~ data.a: \"1\" -> \"3\"\n", "- data[b.c]: \"2\"\n", "+ data.d: \"4\"\n",
				"no change: resourceVersion ", "update configmaps default/old: 409 Conflict: Operation cannot be fulfilled", "(3 times)",
				"it sent resourceVersion ", "s update",
				"patch configmaps default/old: 500 InternalError: ", "(injected: 500)",
				"events:\n  Warning TooOld configmap default/old: it is too old (2 times)\n",
				"- configmaps default/gone\n", "+ configmaps default/new\n", "~ configmaps default/old\n    ~ data.a: \"1\" -> \"3\"\n",
			)
			if strings.Contains(screen, "get configmaps") {
				t.Errorf("the screen has a read that succeeded:\n%s", screen)
			}
			contain(t, "the file", wholeOf(t, screen), "get configmaps default/old: 200, ", "create configmaps default/new: 201, ")
			if strings.Contains(wholeOf(t, screen), "default/kept-") {
				t.Error("the file has an object that the server keeps")
			}
			// The second media type begins with the same objects.
			if err := maps.Delete(ctx, "new", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := before.CoreV1().Events("default").Delete(ctx, "e", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Data: map[string]string{"a": "1", "b.c": "2"}}
			if _, err := maps.Update(ctx, old, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestReport_neverHasSecrets(t *testing.T) {
	config := annextest.Start(t, cluster())
	var all bytes.Buffer
	d := run(func(d *double) {
		report := &annextest.Report{Dir: t.TempDir(), Redact: func(obj map[string]any) {
			if data, ok := obj["data"].(map[string]any); ok && data["private"] != nil {
				data["private"] = "(private)"
			}
		}}
		config := report.Wrap(config)
		report.OnFailure(d)
		for media, client := range namespaceClients(t, config) {
			name := strings.ToLower(media)
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
					"kubectl.kubernetes.io/last-applied-configuration": `{"stringData": {"password": "hunter2"}}`,
				}},
				StringData: map[string]string{"password": "hunter2"},
			}
			secrets := client.CoreV1().Secrets("default")
			w, err := secrets.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if secret, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			<-w.ResultChan()
			w.Stop()
			stale := secret.DeepCopy()
			secret.StringData = map[string]string{"password": "hunter22", "other": "hunter2"}
			if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := secrets.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
			if _, err := secrets.List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err = client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: "e"},
				InvolvedObject: corev1.ObjectReference{Kind: "Secret", Namespace: "default", Name: name}, Message: "hunter2 is short",
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"private": "hunter2"},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := report.WriteTo(&all); err != nil {
			t.Error(err)
		}
		d.Errorf("broken")
	})
	for where, text := range map[string]string{"the screen": d.text(), "the file": wholeOf(t, d.text()), "what WriteTo writes": all.String()} {
		for _, secret := range []string{"hunter2", "aHVudGVyMg"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has the password:\n%s", where, text)
			}
		}
		contain(t, where, text, "~ data.password: \"redacted-", "409 Conflict", "+ data.private: \"(private)\"")
	}
}

func TestReport_success_logsNothing(t *testing.T) {
	d := run(func(d *double) {
		annextest.ReportOnFailure(d, stub())
	})
	if d.text() != "" {
		t.Errorf("a test that passes logs %s", d.text())
	}
}

// A suite has one report, and each of its tests sees its own requests.
func TestReport_ofASuite(t *testing.T) {
	report := &annextest.Report{Dir: t.TempDir()}
	config := report.Wrap(stub())
	for _, name := range []string{"a", "b"} {
		d := run(func(d *double) {
			report.OnFailure(d)
			send(t, config, "PUT", widgetsPath+"/"+name, `{"metadata": {"resourceVersion": "1"}}`)
			d.Errorf("broken")
		})
		contain(t, "the screen", d.text(), "report of TestX/a case: 1 request\n", "update widgets.shop.example.com default/"+name+": 200, ")
	}
	var b strings.Builder
	if n, err := report.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Errorf("%d of %d bytes: %v", n, b.Len(), err)
	}
	contain(t, "what WriteTo writes", b.String(), "report: 2 requests", "default/a", "default/b")
}

func TestReport_isOneScreen(t *testing.T) {
	d := run(func(d *double) {
		config := annextest.ReportOnFailure(d, stub())
		for i := range 300 {
			send(t, config, "PUT", fmt.Sprintf("%s/w%d-%s", widgetsPath, i, strings.Repeat("long", 60)), "{}")
		}
		d.Errorf("broken")
	})
	lines := strings.Split(d.said[1], "\n")
	if len(lines) > 50 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines[:len(lines)-1] {
		if len(line) > 160 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	contain(t, "the screen", d.said[1], "earlier lines of writes and failures", "update widgets.shop.example.com default/w299-")
	whole := wholeOf(t, d.said[1])
	contain(t, "the file", whole, "default/w0-", "default/w299-")
	_, place, _ := strings.Cut(d.said[1], "the whole report: ")
	if err := os.RemoveAll(filepath.Dir(place)); err != nil {
		t.Error(err)
	}
}

func TestReport_memoryIsBounded(t *testing.T) {
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"` + strings.Repeat("x", 500<<10) + `"}}`
	config := &rest.Config{Host: "http://stub.example.com", Transport: transport(func(r *http.Request) (*http.Response, error) {
		if r.Method == "HEAD" {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})}
	report := &annextest.Report{}
	config = report.Wrap(config)
	for i := range 200 {
		send(t, config, "GET", fmt.Sprintf("/api/v1/namespaces/default/configmaps/m%d", i), "")
	}
	if n := report.Held(); n > 32<<20 || n < 16<<20 {
		t.Errorf("%d bytes are held after 100 MB of bodies", n)
	}
	for i := range 11_000 {
		send(t, config, "HEAD", fmt.Sprintf("/api/v1/nodes/n%d", i), "")
	}
	if n := report.Records(); n != 10_000 {
		t.Errorf("%d records after 11,200 requests", n)
	}
	var b strings.Builder
	if _, err := report.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	contain(t, "the report", b.String()[:200], "earlier requests and events of watches are not held any more")
}

func TestReport_unwritableFolder_isNamed(t *testing.T) {
	d := run(func(d *double) {
		report := &annextest.Report{Dir: filepath.Join(t.TempDir(), "none")}
		report.Wrap(stub())
		report.OnFailure(d)
		d.Errorf("broken")
	})
	contain(t, "the screen", d.text(), "the whole report: not kept: ", "no such file or directory")
}

func TestReport_withoutConfiguration_isNamed(t *testing.T) {
	d := run(func(d *double) {
		report := &annextest.Report{Dir: t.TempDir()}
		report.OnFailure(d)
		report.Wrap(stub())
		d.Errorf("broken")
	})
	contain(t, "the screen", d.text(), "the objects at the beginning are not known: no configuration was wrapped when the test began")
}

func TestChanges(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"nothing":   {`{"a": 1, "metadata": {"resourceVersion": "1"}}`, `{"a": 1, "metadata": {"resourceVersion": "2"}}`, ""},
		"a value":   {`{"a": 1}`, `{"a": "x"}`, `~ a: 1 -> "x"`},
		"new, gone": {`{"a": 1}`, `{"b": 1}`, "- a: 1\n+ b: 1"},
		"an object": {`{}`, `{"a": {"b": {"c": 1, "d": 2}}}`, "+ a.b.c: 1\n+ a.b.d: 2"},
		"empty":     {`{}`, `{"a": {}}`, "+ a: {}"},
		"a condition": {
			`{"c": [{"type": "A", "s": 1}, {"type": "B", "s": 1}]}`, `{"c": [{"type": "B", "s": 2}, {"type": "A", "s": 1}]}`,
			"~ c[B].s: 1 -> 2",
		},
		"a list": {`{"l": [1, 2]}`, `{"l": [1, 3, 4]}`, "~ l[1]: 2 -> 3\n+ l[2]: 4"},
		"long values": {`{"a": "` + strings.Repeat("x", 200) + `1"}`, `{"a": "` + strings.Repeat("x", 200) + `2"}`,
			`~ a: "` + strings.Repeat("x", 96) + `... -> "` + strings.Repeat("x", 96) + `...`},
		"another type": {`{"a": {"b": 1}}`, `{"a": [1]}`, `~ a: {"b":1} -> [1]`},
		"labels":       {`{"metadata": {"labels": {"a.b/c": "1"}}}`, `{"metadata": {}}`, `- metadata.labels[a.b/c]: "1"`},
	} {
		var before, after map[string]any
		if err := json.Unmarshal([]byte(c.before), &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.after), &after); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(annextest.Changes(before, after), "\n"); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}
