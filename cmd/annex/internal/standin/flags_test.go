package standin

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParse_forms(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]setting{
		"":                                     nil,
		"--secure-port=1":                      {{"secure-port", "1"}},
		"--secure-port 1":                      {{"secure-port", "1"}},
		"--secure-port= --v=2":                 {{"secure-port", ""}, {"v", "2"}},
		"--profiling":                          {{"profiling", "true"}},
		"--profiling=false":                    {{"profiling", "false"}},
		"--watch-cache --secure-port 1":        {{"watch-cache", "true"}, {"secure-port", "1"}},
		"-v=3":                                 {{"v", "3"}},
		"-v 3":                                 {{"v", "3"}},
		"-v3":                                  {{"v", "3"}},
		"--v 3":                                {{"v", "3"}},
		"--version":                            {{"version", "true"}},
		"--etcd-servers=http://a:1,http://b:2": {{"etcd-servers", "http://a:1,http://b:2"}},
		"--feature-gates=A=true,B=false":       {{"feature-gates", "A=true,B=false"}},
		"--service-account-key-file=a --v=1 --service-account-key-file b": {
			{"service-account-key-file", "a"}, {"v", "1"}, {"service-account-key-file", "b"},
		},
		"--bind-address -v": {{"bind-address", "-v"}},
	} {
		got, err := parse(strings.Fields(line), io.Discard)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", line, got, err, want)
		}
	}
}

func TestParse_mistakes(t *testing.T) {
	t.Parallel()
	const why = ": it would change the outcome of a test, or no kube-apiserver has it"
	for line, want := range map[string]string{
		"--insecure-port=0":            "unknown flag: --insecure-port" + why,
		"--v=1 --audit-everything yes": "unknown flag: --audit-everything" + why,
		"-x":                           "unknown shorthand flag: 'x' in -x" + why,
		"--secure-port":                "flag needs an argument: --secure-port",
		"serve":                        `unexpected argument "serve"`,
		"--allow-privileged true":      `unexpected argument "true"`,
		"--v=1 -- --v=2":               `unexpected argument "--v=2"`,
	} {
		if got, err := parse(strings.Fields(line), io.Discard); err == nil || err.Error() != want || got != nil {
			t.Errorf("%q: %q, %v; want %s", line, got, err, want)
		}
		code, stdout, stderr := call("kube-apiserver", strings.Fields(line)...)
		if code != 2 || stdout != "" || stderr != "kube-apiserver: "+want+"\n" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", line, code, stdout, stderr)
		}
	}
}

// envtest reads the help to find out whether there is an insecure port, which it would then have to turn off.
func TestHelp_listsTheKnownFlags(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := call("kube-apiserver", "--help")
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	listed := func(name string) bool {
		return regexp.MustCompile(`(?m)^\s*(-v, )?--` + name + `\b`).MatchString(stdout)
	}
	for name := range known {
		if !listed(name) {
			t.Errorf("--%s is not listed", name)
		}
	}
	if listed("insecure-port") || listed("unsafe-no-fsync") {
		t.Errorf("a flag that is not known is listed in\n%s", stdout)
	}
}

func TestBools_areKnown(t *testing.T) {
	t.Parallel()
	for _, name := range bools {
		if _, ok := known[name]; !ok {
			t.Errorf("%s is not known", name)
		}
	}
}

// envtestFlags returns the flags that envtest of controller-runtime 0.25.2 passes by default.
func envtestFlags(dir, address, etcd string) []string {
	host, port, _ := strings.Cut(address, ":")
	return []string{
		"--allow-privileged=true",
		"--authorization-mode=RBAC",
		"--bind-address=" + host,
		"--cert-dir=" + dir,
		"--client-ca-file=" + dir + "/client-cert-auth-ca.crt",
		"--disable-admission-plugins=ServiceAccount",
		"--etcd-servers=http://" + etcd,
		"--secure-port=" + port,
		"--service-account-issuer=https://" + address + "/",
		"--service-account-key-file=" + dir + "/sa-signer.crt",
		"--service-account-signing-key-file=" + dir + "/sa-signer.key",
		"--service-cluster-ip-range=10.0.0.0/24",
	}
}

func TestNewStart_flagsOfEnvtest(t *testing.T) {
	t.Parallel()
	settings, err := parse(envtestFlags("/tmp/k8s", "127.0.0.1:6443", "127.0.0.1:2379"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	got, err := newStart(settings, LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"serve", "--storage=memory", "--data-dir=", "--no-kubeconfig", "--console=false", "--swagger-ui=false", "--controllers=",
		"--authorization-mode=RBAC",
		"--bind-address=127.0.0.1",
		"--cert-dir=/tmp/k8s",
		"--client-ca-file=/tmp/k8s/client-cert-auth-ca.crt",
		"--disable-admission-plugins=ServiceAccount",
		"--secure-port=6443",
		"--service-account-issuer=https://127.0.0.1:6443/",
		"--service-account-key-file=/tmp/k8s/sa-signer.crt",
		"--service-account-signing-key-file=/tmp/k8s/sa-signer.key",
	}
	if !slices.Equal(got.args, want) {
		t.Errorf("%q, want %q", got.args, want)
	}
	if ranges := got.kinds.ServiceIPRanges; !slices.Equal(ranges, []string{"10.0.0.0/24"}) {
		t.Errorf("ranges of services: %q", ranges)
	}
}
