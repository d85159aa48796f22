package etcdtest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/etcd"
)

// signingKey writes a key that servers can share.
func signingKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, filepath.Join(t.TempDir(), "accounts.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// asBearer asks a server for the user name of the bearer of a token.
func asBearer(t *testing.T, config *rest.Config, token string) (string, error) {
	t.Helper()
	bearer := rest.AnonymousClientConfig(config)
	bearer.BearerToken, bearer.Dial = token, config.Dial
	who, err := kubernetes.NewForConfigOrDie(bearer).
		AuthenticationV1().
		SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return who.Status.UserInfo.Username, nil
}

// Servers that share the key accept each other's tokens, and reject them as soon as one server has deleted the
// account: nothing is cached, and no watch is waited for.
func TestReplicas_shareServiceAccounts(t *testing.T) {
	members, key := startCluster(t, 1, nil), signingKey(t)
	start := func(key string) *rest.Config {
		return annextest.StartWith(t, shop(), annex.Options{
			Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}), DataDir: t.TempDir(),
			ServiceAccounts: annex.ServiceAccountOptions{SigningKeyFile: key},
		})
	}
	one, other, alone := start(key), start(key), start("")
	clients := map[*rest.Config]*kubernetes.Clientset{one: kubernetes.NewForConfigOrDie(one), other: kubernetes.NewForConfigOrDie(other)}
	ctx := t.Context()
	issue := func(at *rest.Config, name string) string {
		t.Helper()
		answer, err := clients[at].CoreV1().
			ServiceAccounts("default").
			CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status.Token
	}
	known := func(at *rest.Config, token, name string) {
		t.Helper()
		if got, err := asBearer(t, at, token); err != nil || got != "system:serviceaccount:default:"+name {
			t.Errorf("%q, %v", got, err)
		}
	}
	refused := func(at *rest.Config, token string) {
		t.Helper()
		if _, err := asBearer(t, at, token); !apierrors.IsUnauthorized(err) {
			t.Errorf("not refused: %v", err)
		}
	}
	for i := range 20 {
		name := fmt.Sprintf("robot-%d", i)
		if _, err := clients[one].CoreV1().
			ServiceAccounts("default").
			Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		token := issue(one, name)
		known(other, token, name) // at once
		known(one, token, name)
		if i == 0 {
			refused(alone, token) // it has another key
		}
		if err := clients[one].CoreV1().ServiceAccounts("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		refused(other, token) // at once
		refused(one, token)
		if _, err := clients[other].CoreV1().
			ServiceAccounts("default").
			Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		refused(one, token)
	}

	// A rotated key is known to both servers when it signs at one of them.
	before := issue(one, "robot-0")
	if _, err := accounts.Rotate(ctx, key, time.Now(), time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the new key signs at one of them", func(context.Context) error {
		published, err := clients[one].Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
		if n := strings.Count(string(published), `"kid"`); err == nil && n != 2 {
			err = fmt.Errorf("%d keys", n)
		}
		return err
	})
	after := issue(one, "robot-0")
	for _, at := range []*rest.Config{one, other} {
		known(at, before, "robot-0")
		known(at, after, "robot-0")
	}
}
