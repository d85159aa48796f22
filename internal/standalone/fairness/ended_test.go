package fairness

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	flowclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/rest"
)

type closedTransport struct{}

func (closedTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("loopback is closed")
}

// Upstream's flow control logs every other error of these patches.
func TestEnded_failedPatch_isNotFound(t *testing.T) {
	t.Parallel()
	var e ended
	client, err := flowclient.NewForConfig(e.wrap(&rest.Config{Host: "http://loopback", Transport: closedTransport{}}))
	if err != nil {
		t.Fatal(err)
	}
	patch := func() error {
		_, err := client.FlowSchemas().Patch(t.Context(), "probes", types.ApplyPatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		return err
	}
	if err := patch(); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("while the server runs: %v", err)
	}
	e.Store(true)
	if err := patch(); !apierrors.IsNotFound(err) {
		t.Errorf("after its end: %v", err)
	}
}
