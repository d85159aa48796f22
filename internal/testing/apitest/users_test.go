package apitest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// user runs a verb below user of the program, with its data directory, and returns the output.
func (p *process) user(t *testing.T, data string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.Path, append([]string{"user", "--data-dir", data}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &said)
	}
	return string(out)
}

// newUser creates a user and returns the client of the kubeconfig.
func (p *process) newUser(t *testing.T, data, name string, args ...string) *client {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	p.user(t, data, append([]string{"create", name, "--to", kubeconfig}, args...)...)
	info, err := os.Stat(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %v", info.Mode())
	}
	return clientFrom(t, kubeconfig)
}

func TestUsers_createdWhileRunning(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := prepare(t, "--data-dir", data)
	p.user(t, data, "create", "early", "--group", "system:masters", "--output", "pem", "--to", filepath.Join(p.Dir, "early.pem"))
	p.launch(t)
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	root := p.newUser(t, data, "root", "--group", "system:masters")
	root.get(widgetsPath).want(http.StatusOK)
	alice := p.newUser(t, data, "alice", "--group", "staff")
	alice.get("/version").want(http.StatusOK)
	alice.get(widgetsPath).refused(http.StatusForbidden, metav1.StatusReasonForbidden, `User "alice" cannot list resource "widgets"`)

	// Of a user created before the first server with this authority.
	early := clientFrom(t, filepath.Join(data, "kubeconfig"))
	early.config.CertData, early.config.KeyData = nil, nil
	early.config.CertFile, early.config.KeyFile = filepath.Join(p.Dir, "early.pem"), filepath.Join(p.Dir, "early.pem")
	connect(t, early.config).get(widgetsPath).want(http.StatusOK)
}

// writePEM writes a block to a new file and returns its name.
func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority is an authority of the operator, with the name of a server's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		),
		Subject:               pkix.Name{CommonName: "annex-ca"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, writePEM(t, "CERTIFICATE", der)}
}

// sameAs returns the client of a certificate that differs from a client's only in its key and its issuer.
func (a authority) sameAs(t *testing.T, c *client) *client {
	t.Helper()
	block, _ := pem.Decode(c.config.CertData)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert.NotAfter = a.cert.NotAfter
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(c.config)
	config.CertData, config.KeyData = nil, nil
	config.CertFile, config.KeyFile = writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", keyDER)
	return connect(t, config)
}

func TestUsers_revokedCertificates(t *testing.T) {
	t.Parallel()
	data, other := filepath.Join(t.TempDir(), "data"), newAuthority(t)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,joe,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := shopProgram(t, "--data-dir", data, "--client-ca-file", other.file, "--token-auth-file", tokens)
	root := p.newUser(t, data, "root", "--group", "system:masters")
	second := p.newUser(t, data, "root", "--group", "system:masters")
	bob := p.newUser(t, data, "bob", "--group", "system:masters")
	foreign := other.sameAs(t, root)
	for _, c := range []*client{root, second, bob, foreign} {
		c.get(widgetsPath).want(http.StatusOK) // each has a connection, and is cached
	}

	said := p.user(t, data, "revoke", "root")
	if strings.Count(said, " of root was revoked at ") != 2 {
		t.Errorf("revoke said %q", said)
	}
	var reused bool
	trace := httptrace.WithClientTrace(
		t.Context(),
		&httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }},
	)
	testwait.Until(t, "root is refused", func() bool {
		response := root.send(trace, http.MethodGet, widgetsPath, nil)
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body) // so that the connection is reused
		return response.StatusCode == http.StatusUnauthorized
	})
	if !reused {
		t.Error("root was refused on a connection of its own")
	}
	fresh := connect(t, root.config)
	for _, c := range []*client{root, second, fresh} {
		for _, path := range []string{widgetsPath, "/version", "/readyz"} {
			c.get(path).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		}
		// Other credentials do not help.
		c.get(widgetsPath, "Authorization", "Bearer secret").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	}
	bob.get(widgetsPath).want(http.StatusOK)
	foreign.get(widgetsPath).want(http.StatusOK)
	admin := clientFrom(t, filepath.Join(data, "kubeconfig"))
	for _, want := range []string{"\nannex_certificates_revoked 2\n", "\nannex_certificate_revocation_failures_total 0\n"} {
		if metrics := string(admin.get("/metrics").want(http.StatusOK).raw); !strings.Contains(metrics, want) {
			t.Errorf("the metrics are without %q", want)
		}
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// The next start knows the revocations, and so does the other process.
	if listed := p.user(t, data, "list"); strings.Count(listed, " revoked 20") != 2 {
		t.Errorf("listed:\n%s", listed)
	}
	again := shopProgram(t, "--data-dir", data, "--client-ca-file", other.file)
	defer func() {
		if err := again.stop(); err != nil {
			t.Error(err)
		}
	}()
	host := clientFrom(t, filepath.Join(data, "kubeconfig")).config.Host
	for c, code := range map[*client]int{root: http.StatusUnauthorized, bob: http.StatusOK, foreign: http.StatusOK} {
		config := rest.CopyConfig(c.config)
		config.Host = host
		connect(t, config).get(widgetsPath).want(code)
	}
}
