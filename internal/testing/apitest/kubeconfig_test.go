package apitest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// kubeconfig runs the verb of the program and returns its output.
func (p *process) kubeconfig(t *testing.T, env string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.Path, append([]string{"kubeconfig"}, args...)...)
	cmd.Env = append(os.Environ(), env)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &said)
	}
	return out
}

func TestKubeconfig_shortLivedToken(t *testing.T) {
	t.Parallel()
	data, dir := filepath.Join(t.TempDir(), "data"), t.TempDir()
	p := shopProgram(t, "--data-dir", data, "--ephemeral-token", "--ephemeral-token-duration", "10m")
	own := filepath.Join(data, "kubeconfig")
	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "client-key") || !strings.Contains(string(text), "token: ") {
		t.Errorf("the kubeconfig: %s", text)
	}
	c := clientFrom(t, own)
	c.create("w")
	if got := c.post(selfReviewPath, review("SelfSubjectReview")).
		want(201).
		str("status", "userInfo", "groups"); got != "[system:masters system:authenticated]" {
		t.Errorf("groups %s", got)
	}
	// Verbs that ask the running server use this kubeconfig.
	if out, err := exec.CommandContext(t.Context(), p.Path, "storage", "backup", "--data-dir", data, "--to", filepath.Join(dir, "backup")).
		CombinedOutput(); err != nil {
		t.Errorf("storage backup: %v: %s", err, out)
	}

	written := filepath.Join(dir, "written")
	p.kubeconfig(t, "", "--data-dir", data, "--ephemeral-token-duration", "1m", "--to", written)
	info, err := os.Stat(written)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	clientFrom(t, written).get(widgetsPath).want(200)

	// A user can request tokens as well, and both end when the certificate is revoked.
	pem := filepath.Join(dir, "alice.pem")
	p.user(t, data, "create", "alice", "--group", "system:masters", "--output", "pem", "--to", pem)
	ofAlice := filepath.Join(dir, "alice")
	p.kubeconfig(t, "", "--data-dir", data, "--certificate", pem, "--to", ofAlice)
	alice := clientFrom(t, ofAlice)
	if got := alice.post(selfReviewPath, review("SelfSubjectReview")).want(201).str("status", "userInfo", "username"); got != "alice" {
		t.Errorf("known as %s", got)
	}
	p.user(t, data, "revoke", "alice")
	testwait.NoError(t, "the token is refused", func(context.Context) error {
		if alice.get("/version").code != 401 {
			return errors.New("accepted")
		}
		return nil
	})
	c.get(widgetsPath).want(200)

	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	known, err := clientcmd.LoadFromFile(own)
	if err != nil {
		t.Fatal(err)
	}
	token := known.AuthInfos["shop-admin"].Token
	if strings.Contains(p.log.String(), token) {
		t.Error("the token is in the log")
	}
	// A restart knows the token, and leaves it in place while it lasts.
	p = shopProgram(t, "--data-dir", data, "--ephemeral-token", "--ephemeral-token-duration", "10m")
	again, err := clientcmd.LoadFromFile(own)
	if err != nil || again.AuthInfos["shop-admin"].Token != token {
		t.Errorf("another token: %v", err)
	}
	clientFrom(t, own).get(widgetsPath).want(200)
	// Without the flag, the key is back.
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	shopProgram(t, "--data-dir", data)
	if again, err = clientcmd.LoadFromFile(own); err != nil || again.AuthInfos["shop-admin"].Token != "" {
		t.Errorf("the token stays: %v", err)
	}
	clientFrom(t, own).get(widgetsPath).want(200)
}

func TestKubeconfig_execPlugin(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data)
	path := filepath.Join(t.TempDir(), "exec")
	p.kubeconfig(t, "", "--data-dir", data, "--exec", "--to", path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"token: ", "client-key", "client-certificate"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s in %s", secret, text)
		}
	}
	clientFrom(t, path).get(widgetsPath).want(200) // by client-go's plugin

	printed := p.kubeconfig(
		t,
		`KUBERNETES_EXEC_INFO={"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}`,
		"token",
		"--data-dir",
		data,
		"--ephemeral-token-duration",
		"5m",
	)
	var credential struct {
		APIVersion, Kind string
		Status           struct {
			Token               string
			ExpirationTimestamp time.Time
		}
	}
	if err := json.Unmarshal(printed, &credential); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(
		credential.Status.ExpirationTimestamp,
	); credential.APIVersion != "client.authentication.k8s.io/v1" || credential.Kind != "ExecCredential" || left <= 0 ||
		left > 5*time.Minute {
		t.Errorf("%+v", credential)
	}
	admin := clientFrom(t, filepath.Join(data, "kubeconfig"))
	admin.stranger(credential.Status.Token).get(widgetsPath).want(200)
	admin.stranger(credential.Status.Token[:len(credential.Status.Token)-2]).get("/version").want(401)
}

func TestKubeconfig_invalidOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]annex.Options{
		"Options.Kubeconfig.EphemeralTokenDuration requires " +
			"Options.Kubeconfig.EphemeralToken": {Kubeconfig: annex.KubeconfigOptions{EphemeralTokenDuration: time.Hour}},
		"Options.Kubeconfig.EphemeralTokenDuration 59s is less " +
			"than 1m0s": {Kubeconfig: annex.KubeconfigOptions{EphemeralToken: true, EphemeralTokenDuration: 59 * time.Second}},
		"Options.Kubeconfig.EphemeralTokenDuration -1s is less " +
			"than 1m0s": {Kubeconfig: annex.KubeconfigOptions{EphemeralToken: true, EphemeralTokenDuration: -time.Second}},
		"Options.Kubeconfig.EphemeralToken requires a standalone server: an aggregated server has no administrator": {Aggregated: true,
			Kubeconfig: annex.KubeconfigOptions{EphemeralToken: true}},
	} {
		o.Storage = memory.Storage()
		instance, err := annex.New(t.Context(), shop(), o)
		if err == nil {
			t.Errorf("no error, want %s", want)
			instance.Close()
			continue
		}
		if !errors.As(err, new(*annex.ConfigError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestKubeconfig_noneAndBrowserCertificate(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	options := annex.Options{
		Storage:    memory.Storage(),
		DataDir:    data,
		Kubeconfig: annex.KubeconfigOptions{None: true, PKCS12Password: "P@ssw0rd"},
	}
	instance, stop := run(t, shop(), options)
	if _, err := os.Stat(filepath.Join(data, "kubeconfig")); !errors.Is(err, fs.ErrNotExist) || instance.Kubeconfig() != "" {
		t.Errorf("the kubeconfig is %q: %v", instance.Kubeconfig(), err)
	}
	path := filepath.Join(data, "cert", "client.p12")
	encoded, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	key, cert, authorities, err := pkcs12.DecodeChain(encoded, "P@ssw0rd")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authorities[0])
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
	}}}
	defer browser.CloseIdleConnections()
	response, err := browser.Get(instance.URL() + widgetsPath)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("the certificate is answered with %s", response.Status)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	// The file stays unchanged until the password or the certificate changes.
	_, stop = run(t, shop(), options)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, encoded) {
		t.Errorf("written anew, %v", err)
	}
	options.Kubeconfig.PKCS12Password = "other"
	run(t, shop(), options)
	if again, err := os.ReadFile(path); err != nil || bytes.Equal(again, encoded) {
		t.Errorf("encrypted with the old password, %v", err)
	}
}

func TestRefusedUserAgents(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), Serving: annex.ServingOptions{RefusedUserAgents: []string{"kubectl"}}})
	for _, agent := range []string{"kubectl/v1.37.2 (linux/amd64) kubernetes/abc", "Kubectl", "kubectl 1.2"} {
		c.get(widgetsPath, "User-Agent", agent).
			refused(403, metav1.StatusReasonForbidden, "this server rejects requests of "+
				strings.FieldsFunc(agent, func(r rune) bool { return r == '/' || r == ' ' })[0])
		if a := c.get("/apis", "User-Agent", agent).want(403); !strings.HasPrefix(string(a.raw), "this server rejects requests of ") {
			t.Errorf("discovery says %s to %s, which kubectl does not show", a.raw, agent)
		}
		c.get("/readyz", "User-Agent", agent).want(200)
	}
	for _, agent := range []string{"curl/8", "kubectl-annex/v1", "mykubectl/1", ""} {
		c.get(widgetsPath, "User-Agent", agent).want(200)
	}
}
