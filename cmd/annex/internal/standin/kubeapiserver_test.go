package standin

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	servers "github.com/annexapi/annex/program"
	"github.com/annexapi/annex/workloads"
)

// translated returns the flags that newStart adds for settings.
func translated(t *testing.T, personality Personality, settings ...setting) (*start, []string) {
	t.Helper()
	bare, err := newStart(nil, personality, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := newStart(settings, personality, nil)
	if err != nil {
		t.Fatal(err)
	}
	return got, got.args[len(bare.args):]
}

func TestNewStart_translates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, value string
		want        []string
	}{
		{"authorization-mode", "RBAC", []string{"--authorization-mode=RBAC"}},
		{"authorization-mode", "Node,RBAC", []string{"--authorization-mode=RBAC"}},
		{"authorization-mode", "Webhook,Node,RBAC", []string{"--authorization-mode=Webhook,RBAC"}},
		{"enable-admission-plugins", "NamespaceLifecycle,NodeRestriction", []string{"--enable-admission-plugins=NodeRestriction"}},
		{"enable-admission-plugins", "NamespaceLifecycle,AlwaysAdmit", nil},
		{"enable-admission-plugins", "", nil},
		{"disable-admission-plugins", "ServiceAccount,NamespaceLifecycle", []string{"--disable-admission-plugins=ServiceAccount"}},
		{"disable-admission-plugins", "NamespaceLifecycle", nil},
		{"v", "4", []string{"--verbosity=4"}},
		{"anonymous-auth", "false", nil},
		{"allow-privileged", "true", nil},
		{"tls-cert-file", "/a,b=c", []string{"--tls-cert-file=/a,b=c"}},
		{"profiling", "false", []string{"--profiling=false"}},
	} {
		if _, got := translated(t, LikeEnvtest, setting{test.name, test.value}); !slices.Equal(got, test.want) {
			t.Errorf("--%s=%s: %q, want %q", test.name, test.value, got, test.want)
		}
	}
}

func TestNewStart_sameAndIgnored(t *testing.T) {
	t.Parallel()
	for name, meaning := range known {
		if meaning == special {
			continue
		}
		_, got := translated(t, LikeEnvtest, setting{name, ""})
		switch {
		case meaning == same && !slices.Equal(got, []string{"--" + name + "="}):
			t.Errorf("--%s, which has the same meaning, is passed as %q", name, got)
		case meaning == ignored && len(got) > 0:
			t.Errorf("--%s, which is ignored, is passed as %q", name, got)
		}
	}
	_, got := translated(t, LikeEnvtest, setting{"audit-log-path", "a"}, setting{"etcd-prefix", "b"}, setting{"audit-log-path", "c"})
	if want := []string{"--audit-log-path=a", "--audit-log-path=c"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNewStart_services(t *testing.T) {
	t.Parallel()
	got, args := translated(t, LikeEnvtest,
		setting{"service-cluster-ip-range", "10.0.0.0/24,fd00::/108"}, setting{"service-node-port-range", "30000-30010"})
	if ranges := got.kinds.ServiceIPRanges; !slices.Equal(ranges, []string{"10.0.0.0/24", "fd00::/108"}) {
		t.Errorf("ranges of services: %q", ranges)
	}
	if got.kinds.ServiceNodePorts != "30000-30010" || len(args) > 0 {
		t.Errorf("ports of nodes %q, flags %q", got.kinds.ServiceNodePorts, args)
	}
}

func TestNewStart_wrongRange_isRefused(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"x", "10.0.0.0", "10.0.0.0/24,10.0.1.0/99"} {
		code, stdout, stderr := call("kube-apiserver", "--service-cluster-ip-range="+value)
		if code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", value, code, stdout)
		}
		oneLine(t, stderr, "kube-apiserver: --service-cluster-ip-range ", ": want ranges such as 10.0.0.0/24")
	}
}

func TestNewStart_personalities(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		personality Personality
		controllers []string
		want        string
	}{
		{LikeEnvtest, nil, "--controllers="},
		{LikeEnvtest, []string{"a", "b"}, "--controllers=a,b"},
		{LikeCluster, nil, "--controllers=*"},
		{LikeCluster, []string{"all"}, "--controllers=*,all"},
	} {
		got, err := newStart(nil, test.personality, test.controllers)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(got.args, test.want) {
			t.Errorf("%s with %q: %q lacks %s", test.personality, test.controllers, got.args, test.want)
		}
	}
}

// A kube-apiserver permits no privileged containers and accepts requests without credentials, unless flags say otherwise.
func TestNewStart_privilegesAndAnonymousRequests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		settings   []setting
		privileged bool
		want       string
	}{
		{nil, false, "anonymous: {enabled: true}"},
		{[]setting{{"allow-privileged", "true"}, {"anonymous-auth", "true"}}, true, "anonymous: {enabled: true}"},
		{[]setting{{"allow-privileged", "false"}, {"anonymous-auth", "false"}}, false, "anonymous: {enabled: false}"},
		{[]setting{{"authorization-mode", "AlwaysAllow"}}, false, "anonymous: {enabled: false}"},
		{[]setting{{"authentication-config", "/dev/null"}}, false, ""},
	} {
		got, _ := translated(t, LikeEnvtest, test.settings...)
		remove, err := got.authenticate()
		if err != nil {
			t.Fatal(err)
		}
		file, given := strings.CutPrefix(got.args[len(got.args)-1], "--authentication-config=")
		text, err := os.ReadFile(file)
		if err != nil || !given || !strings.Contains(string(text), test.want) || got.privileged != test.privileged {
			t.Errorf("%q: privileged is %t, and %s has %q: %v", test.settings, got.privileged, file, text, err)
		}
		remove()
		if _, err := os.Stat(file); (err == nil) != (test.want == "") {
			t.Errorf("%q: after the end, %s: %v", test.settings, file, err)
		}
	}
}

func TestNewStart_mistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		settings []setting
		want     string
	}{
		{[]setting{{"allow-privileged", "yes"}}, "--allow-privileged yes: want true or false"},
		{[]setting{{"anonymous-auth", ""}}, "--anonymous-auth : want true or false"},
		{
			[]setting{{"authentication-config", "a"}, {"anonymous-auth", "true"}},
			"--anonymous-auth: the file of --authentication-config has the field anonymous instead",
		},
	} {
		if _, err := newStart(test.settings, LikeEnvtest, nil); err == nil || err.Error() != test.want {
			t.Errorf("%q: %v, want %s", test.settings, err, test.want)
		}
	}
}

// The features of a process do not change back, so that the program runs as one of its own.
func TestAPIServer_unsupportedFeatureGates_areRefused(t *testing.T) {
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"CBORServingAndStorage=true", "AllAlpha=true,AllBeta=true", "CoordinatedLeaderElection=true"} {
		out, err := exec.Command(filepath.Join(assets, "kube-apiserver"+suffix()), "--feature-gates="+value).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%s: %v", value, err)
		}
		oneLine(t, string(out), "kube-apiserver: --feature-gates "+value+": this kube-apiserver lacks ", "=false")
	}
}

func TestNewStart_unknownFeatureGate_isRefused(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"NoSuchGate=true", "NoSuchGate"} {
		if _, err := newStart([]setting{{"feature-gates", value}}, LikeEnvtest, nil); err == nil ||
			!strings.HasPrefix(err.Error(), "--feature-gates: ") || !strings.Contains(err.Error(), "NoSuchGate") {
			t.Errorf("%s: %v", value, err)
		}
		code, stdout, stderr := call("kube-apiserver", "--feature-gates="+value)
		if code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", value, code, stdout)
		}
		oneLine(t, stderr, "kube-apiserver: --feature-gates: ", "NoSuchGate")
	}
}

// Flags that are passed on have to exist: otherwise a start with them would end with a message about another program.
func TestKnown_passedFlags_areFlagsOfServe(t *testing.T) {
	t.Parallel()
	server := annex.Server{Name: "kube-apiserver", ControlPlane: controlplane.New(controlplane.Options{
		Extension: workloads.New(workloads.Options{}),
	})}
	var stdout, stderr bytes.Buffer
	if code := servers.Run(t.Context(), server, []string{"serve", "--help"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	all, err := newStart([]setting{
		{"authorization-mode", "RBAC"}, {"enable-admission-plugins", "A"}, {"disable-admission-plugins", "B"}, {"v", "1"},
	}, LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, meaning := range known {
		if meaning == same {
			all.args = append(all.args, "--"+name+"=")
		}
	}
	for _, arg := range all.args[1:] {
		name, _, _ := strings.Cut(arg, "=")
		if !regexp.MustCompile(`(?m)^\s*(-\w, )?` + name + `\b[^-]`).Match(stdout.Bytes()) {
			t.Errorf("serve has no flag %s", name)
		}
	}
}

// writeCertificates writes the files that envtest writes, and returns a client that trusts the server.
func writeCertificates(t *testing.T, dir string) *http.Client {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	for name, data := range map[string][]byte{
		"apiserver.crt": certPEM, "apiserver.key": keyPEM, "sa-signer.crt": certPEM, "sa-signer.key": keyPEM, "client-cert-auth-ca.crt": certPEM,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func TestAPIServer_flagsOfEnvtest_servesUntilSIGTERM(t *testing.T) {
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	client, address := writeCertificates(t, dir), freeAddress(t)
	s := startProgram(t, filepath.Join(assets, "kube-apiserver"+suffix()), envtestFlags(dir, address, freeAddress(t))...)
	s.waitFor(t, client, "https://"+address+"/readyz")
	if !answers(t, client, "https://"+address+"/healthz") || !answers(t, client, "https://"+address+"/version") {
		t.Error("a path that all callers may read does not answer")
	}
	client.CloseIdleConnections()
	s.terminate(t)
}

func TestAPIServer_portInUse_fails(t *testing.T) {
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	writeCertificates(t, dir)
	s := startProgram(t, filepath.Join(assets, "kube-apiserver"+suffix()), envtestFlags(dir, l.Addr().String(), freeAddress(t))...)
	select {
	case err := <-s.ended:
		if err == nil {
			t.Error("the program ends with exit code 0")
		}
		oneLine(t, s.stderr.String(), "kube-apiserver: --secure-port: ", "in use")
	case <-time.After(time.Minute):
		t.Error("the program goes on")
	}
}
