package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// Any client that can reach the server could claim to be the front proxy.
func forgedHeaders(t *testing.T, w *wardle) {
	stranger, err := kube.NewAuthority("stranger")
	if err != nil {
		t.Fatal(err)
	}
	client := func(a *kube.Authority, name string, groups ...string) *rest.Config {
		t.Helper()
		pair, err := a.Client(name, groups...)
		if err != nil {
			t.Fatal(err)
		}
		config := w.direct(&rest.Config{})
		config.CertData, config.KeyData = pair.Certificate, pair.Key
		return config
	}
	claim := http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}}
	const path = "/apis/" + group + "/v1alpha1/flunders"
	for name, c := range map[string]struct {
		config *rest.Config
		status int
		says   string
	}{
		"the front proxy itself":                     {client(host.FrontProxyAuthority(), "front-proxy-client"), http.StatusOK, "FlunderList"},
		"the right name of an unknown authority":     {client(stranger, "front-proxy-client"), http.StatusUnauthorized, "Unauthorized"},
		"another name of the right authority":        {client(host.FrontProxyAuthority(), "alice"), http.StatusUnauthorized, "Unauthorized"},
		"a user of the cluster, who stays that user": {user(t, "mallory"), http.StatusForbidden, `\"mallory\" cannot list`},
		"an unknown authority's own administrator":   {client(stranger, "root", "system:masters"), http.StatusUnauthorized, "Unauthorized"},
		"no certificate":                             {w.direct(&rest.Config{}), http.StatusForbidden, `\"system:anonymous\" cannot list`},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			status, body := get(t, w.direct(c.config), path, claim)
			if status != c.status || !strings.Contains(body, c.says) {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.says)
			}
		})
	}
}

// The front proxy names the caller, and the cluster's roles decide.
func serviceAccounts(t *testing.T, w *wardle) {
	ns := namespace(t)
	admin := newKubectl(t, host.Admin())
	admin.must("create", "serviceaccount", "robot", "-n", ns)
	admin.must("create", "role", "flunders", "-n", ns, "--verb=get,list", "--resource=flunders.wardle.example.com")
	admin.must("create", "rolebinding", "flunders", "-n", ns, "--role=flunders", "--serviceaccount="+ns+":robot")
	robot, err := host.ServiceAccount(ending(t), ns, "robot")
	if err != nil {
		t.Fatal(err)
	}
	wrong := rest.CopyConfig(robot)
	wrong.BearerToken = robot.BearerToken[:len(robot.BearerToken)-8] + "AAAAAAAA"
	for name, config := range map[string]func(*rest.Config) *rest.Config{
		"through the cluster":                         rest.CopyConfig,
		"directly, where the server asks the cluster": w.direct,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			k := newKubectl(t, config(robot))
			testwait.NoError(t, "the role applies", func(context.Context) error {
				out, err := k.run("", "-n", ns, "get", "flunders")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
			k.refused(
				fmt.Sprintf(alphaFlunder, "a"),
				`User "system:serviceaccount:`+ns+`:robot" cannot create resource "flunders"`,
				"-n",
				ns,
				"create",
				"-f",
				"-",
			)
			if status, body := get(
				t,
				config(wrong),
				"/apis/"+group+"/v1alpha1/namespaces/"+ns+"/flunders",
				nil,
			); status != http.StatusUnauthorized {
				t.Errorf("a token with a wrong signature: %d %s", status, body)
			}
		})
	}
}

// The host sends no requests to a server whose certificate the APIService's caBundle does not verify.
func wrongAuthority(t *testing.T, w *wardle) {
	stranger, err := kube.NewAuthority("stranger")
	if err != nil {
		t.Fatal(err)
	}
	client, err := aggregator.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	bundle := func(ca []byte, status apiregistrationv1.ConditionStatus) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"caBundle":%q}}`, base64.StdEncoding.EncodeToString(ca))
		for _, version := range []string{"v1alpha1.", "v1beta1."} {
			if _, err := client.ApiregistrationV1().
				APIServices().
				Patch(t.Context(), version+group, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		awaitAvailable(t, status)
	}
	bundle(stranger.PEM(), apiregistrationv1.ConditionFalse)
	k := newKubectl(t, host.Admin())
	k.prints("tls: failed to verify certificate", "get", "apiservice", "v1alpha1."+group, "-o", "jsonpath={.status.conditions}")
	k.refused("", "ServiceUnavailable", "get", "--raw", "/apis/"+group+"/v1alpha1/flunders")
	bundle(append(stranger.PEM(), w.serving.PEM()...), apiregistrationv1.ConditionTrue)
	k.prints("FlunderList", "get", "--raw", "/apis/"+group+"/v1alpha1/flunders")
	bundle(w.serving.PEM(), apiregistrationv1.ConditionTrue)
}
