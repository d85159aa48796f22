package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// tool runs annex for a project, as an administrator of the cluster.
func tool(t *testing.T, k *kubectl, verb string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	program := newDoctor(t).program // builds it
	cmd := exec.CommandContext(t.Context(), program, append([]string{verb, "--kubeconfig", k.kubeconfig}, args...)...)
	cmd.Dir = "../../samples/animal"
	cmd.Env = append(os.Environ(), "GOWORK=", "PWD=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// One command deploys a project to the cluster, and another removes it. The test acts as the node: it pulls the
// image, and runs the program in it.
func TestDeployAndUninstall(t *testing.T) {
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer images.Close()
	image := strings.TrimPrefix(images.URL, "http://") + "/animal:v1"
	admin := newKubectl(t, host.Admin())

	dry, out := tool(t, admin, "deploy", "--image", image, "--name", "animal", "--namespace", "zoo", "--dry-run")
	if err := dry.Run(); err != nil || !strings.Contains(out.String(), "namespace zoo created (dry run)") {
		t.Errorf("dry run: %v\n%s", err, out)
	}
	admin.refused("", "not found", "get", "namespace", "zoo")

	deploying, out := tool(t, admin, "deploy", "--image", image, "--name", "animal", "--namespace", "zoo", "--timeout", patience.String())
	if err := deploying.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- deploying.Wait() }()
	defer func() { _ = deploying.Process.Kill() }()

	workload := awaitStatefulSet(t, "zoo", "animal")
	container := workload.Spec.Template.Spec.Containers[0]
	if !strings.HasPrefix(container.Image, image+"@sha256:") {
		t.Errorf("the image is not deployed by its digest: %s", container.Image)
	}
	program := filepath.Join(run, "animal")
	extract(t, container.Image, "animal", program)
	d := &deployed{
		t:         t,
		namespace: "zoo",
		name:      "animal",
		program:   program,
		services:  []string{"v1alpha1.animal.demo.io"},
		admin:     admin,
		args:      container.Args,
	}
	d.home()
	process := d.pod("0")
	d.lead(process)
	if err := <-ended; err != nil {
		t.Fatalf("annex deploy: %v\n%s", err, out)
	}
	if text := out.String(); !strings.Contains(text, "apiservice v1alpha1.animal.demo.io: available True") {
		t.Errorf("annex deploy printed\n%s", text)
	}
	admin.given(
		"apiVersion: animal.demo.io/v1alpha1\nkind: Cat\nmetadata: {name: lucky, namespace: default}\nspec: {name: Lucky}\n",
		"apply",
		"-f",
		"-",
	)
	admin.prints("lucky", "get", "cat")

	// The test has changed the port, as another field manager.
	again, out := tool(t, admin, "deploy", "--image", image, "--name", "animal", "--namespace", "zoo", "--no-build", "--timeout", "0")
	if err := again.Run(); err == nil || !strings.Contains(out.String(), "to take over the fields, use --force-conflicts") {
		t.Errorf("over another manager's change: %v\n%s", err, out)
	}
	if text := out.String(); !strings.Contains(text, "namespace zoo unchanged") {
		t.Errorf("deployed again, it printed\n%s", text)
	}

	removing, out := tool(t, admin, "uninstall", "--name", "animal", "--namespace", "zoo", "--delete-data")
	if err := removing.Run(); err != nil {
		t.Fatalf("annex uninstall: %v\n%s", err, out)
	}
	text := out.String()
	if first, workload := strings.Index(
		text,
		"apiservice v1alpha1.animal.demo.io deleted",
	), strings.Index(
		text,
		"statefulset animal in zoo deleted",
	); first < 0 ||
		workload < first {
		t.Errorf("the APIService did not go first:\n%s", text)
	}
	if err := process.Stop(); err != nil {
		t.Error(err)
	}
	client, err := kubernetes.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace ends", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, "zoo", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
	for _, what := range []string{"clusterroles", "clusterrolebindings", "apiservices", "rolebindings"} {
		if out := admin.must(
			"get",
			what,
			"--all-namespaces",
			"-l",
			"app.kubernetes.io/name=animal",
		); !strings.Contains(
			out,
			"No resources found",
		) {
			t.Errorf("left behind:\n%s", out)
		}
	}
	none, out := tool(t, admin, "uninstall", "--name", "animal", "--namespace", "zoo")
	if err := none.Run(); err == nil || !strings.Contains(out.String(), "no objects of a server animal found in the namespace zoo") {
		t.Errorf("once more: %v\n%s", err, out)
	}
}

func awaitStatefulSet(t *testing.T, namespace, name string) *appsv1.StatefulSet {
	t.Helper()
	client, err := kubernetes.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	var found *appsv1.StatefulSet
	testwait.NoError(t, "the StatefulSet is there", func(ctx context.Context) error {
		var err error
		found, err = client.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return found
}

// extract writes a file of an image, as a node would have it.
func extract(t *testing.T, image, file, to string) {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	content := mutate.Extract(pulled)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", file, image, err)
		}
		if header.Name != file {
			continue
		}
		out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		return
	}
}
