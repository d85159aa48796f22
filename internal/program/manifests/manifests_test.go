package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/annexapi/annex/internal/model/define"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

// shop is a definition with one kind and a controller.
func shop(t *testing.T) *define.Server {
	t.Helper()
	s := &define.Server{
		Name:        "shop",
		Controllers: []define.Controller{{Name: "baker", Run: func(context.Context, any) error { return nil }}},
		Groups: []define.Group{{Name: "shop.example.com", Kinds: []*define.Kind{{
			Resource: "widgets", Versions: []*define.Version{{Facts: v1.API, Type: reflect.TypeFor[v1.Widget](),
				ListType: reflect.TypeFor[v1.WidgetList]()}},
		}}}},
	}
	if err := define.Check(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func inDir([]string) (driver.Driver, []driver.Driver, error) { return embedded.Dir(""), nil, nil }

func inEtcd(servers []string) (driver.Driver, []driver.Driver, error) {
	return etcd.Cluster(etcd.Options{Endpoints: servers}), nil, nil
}

const image = "registry.example.com/shop:v1"

// The manifests are reviewed as a diff; UPDATE=1 rewrites them.
func TestYAML_golden(t *testing.T) {
	for name, c := range map[string]Config{
		"embedded": {Storage: inDir},
		"etcd": {Storage: inEtcd, EtcdServers: []string{"https://etcd.example.com:2379"}, EtcdSecret: "client", UserRoles: true,
			ServiceMonitor: true, SeparateControllers: true},
		"own-etcd":      {Storage: inEtcd, WithEtcd: true, Certificates: CertManager, Namespace: "own", GroupPriority: 2000},
		"external":      {Storage: inDir, External: []string{"192.0.2.7:8443", "[2001:db8::7]:8443"}},
		"external-name": {Storage: inDir, External: []string{"shop.example.com:8443"}, Certificates: OwnFiles, InsecureSkipTLSVerify: true},
		"lean": {Storage: inDir, Certificates: SecretPrefix + "tls", WithoutFlowControl: true, Args: []string{"--v=2"},
			DisablePlugins: []string{"NamespaceLifecycle", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook",
				"ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Definition = shop(t)
			if len(c.External) == 0 {
				c.Image = image
			}
			if err := c.Complete(); err != nil {
				t.Fatal(err)
			}
			got, err := c.YAML()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("%s is otherwise; UPDATE=1 writes it anew (-file +now):\n%s", file, diff)
			}
		})
	}
}

func TestComplete_replicas(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		want   int
	}{
		"storage of its own":        {Config{Storage: inDir}, 1},
		"shared storage":            {Config{Storage: inEtcd, EtcdServers: []string{"https://etcd.example.com:2379"}}, 2},
		"an etcd in the pod":        {Config{Storage: inEtcd, EtcdServers: []string{"http://127.0.0.1:2379"}}, 1},
		"as many as are asked for":  {Config{Storage: inEtcd, EtcdServers: []string{"https://etcd.example.com:2379"}, Replicas: 5}, 5},
		"an etcd that is made, too": {Config{Storage: inEtcd, WithEtcd: true}, 2},
	} {
		test.config.Definition, test.config.Image = shop(t), image
		if err := test.config.Complete(); err != nil || test.config.Replicas != test.want {
			t.Errorf("%s: %d replicas, want %d; %v", name, test.config.Replicas, test.want, err)
		}
	}
}

func TestComplete_mistakes(t *testing.T) {
	for want, spoil := range map[string]func(c *Config){
		`Config.Name "1shop": `:                             func(c *Config) { c.Name = "1shop" },
		`Config.Namespace "A": `:                            func(c *Config) { c.Namespace = "A" },
		"Config.Image is missing":                           func(c *Config) { c.Image = "" },
		`Config.Image "a b" is not a valid image reference`: func(c *Config) { c.Image = "a b" },
		"Config.EtcdSecret requires Config.Etcd":            func(c *Config) { c.EtcdSecret = "s" },
		"Config.Replicas -1 is negative":                    func(c *Config) { c.Replicas = -1 },
		"Config.Replicas 2: several replicas require":       func(c *Config) { c.Replicas = 2 },
		"Config.StorageSize -1Gi is negative":               func(c *Config) { c.StorageSize = resource.MustParse("-1Gi") },
		`Config.EtcdServers "http://e:2379": `:              func(c *Config) { c.EtcdServers = []string{"http://e:2379"} },
		"Config.WithEtcd and Config.EtcdServers exclude " +
			"each other": func(c *Config) { c.WithEtcd, c.EtcdServers = true, []string{"https://e:2379"} },
		`Config.Certificates "mine": choose self`: func(c *Config) { c.Certificates = "mine" },
		`Config.Certificates "secret=": `:         func(c *Config) { c.Certificates = SecretPrefix },
		"Config.CABundle requires Config.Cert":    func(c *Config) { c.CABundle = []byte("x") },
		"Config.SeparateControllers: the server":  func(c *Config) { c.SeparateControllers, c.Definition.Controllers = true, nil },
		"Config.GroupPriority 20001 is not":       func(c *Config) { c.GroupPriority = 20001 },
	} {
		c := Config{Definition: shop(t), Image: image, Storage: inDir}
		spoil(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a mistake with %q, got %v", want, err)
		}
	}
}

func TestComplete_external_mistakes(t *testing.T) {
	for want, spoil := range map[string]func(c *Config){
		"Config.External \"127.0.0.1\": the cluster does not accept": func(c *Config) { c.External = []string{"127.0.0.1"} },
		"Config.External \"[::1]:8443\": the cluster does not":       func(c *Config) { c.External = []string{"[::1]:8443"} },
		"Config.External \"169.254.1.1\": the cluster does not":      func(c *Config) { c.External = []string{"169.254.1.1"} },
		"Config.External \"fe80::1%eth0\": the cluster does not":     func(c *Config) { c.External = []string{"fe80::1%eth0"} },
		"Config.External \"A b\": must be HOST or HOST:PORT":         func(c *Config) { c.External = []string{"A b"} },
		"Config.External \"1.2.3\": must be HOST or HOST:PORT":       func(c *Config) { c.External = []string{"1.2.3"} },
		"Config.External \"https://shop:8443\": must be HOST":        func(c *Config) { c.External = []string{"https://shop:8443"} },
		"Config.External \"shop.example.com:0\": the port is not":    func(c *Config) { c.External = []string{"shop.example.com:0"} },
		"Config.External \"192.0.2.8:2\": all addresses must have": func(c *Config) {
			c.External = []string{"192.0.2.7:1",
				"192.0.2.8:2"}
		},
		"Config.External \"::ffff:192.0.2.7\": the address is given": func(c *Config) {
			c.External = []string{"192.0.2.7",
				"::ffff:192.0.2.7"}
		},
		"Config.External a, 192.0.2.7: a Service has one DNS name":   func(c *Config) { c.External = []string{"a", "192.0.2.7"} },
		"Config.Image is for a server in the cluster":                func(c *Config) { c.Image = image },
		"Config.Replicas is for a server in the cluster":             func(c *Config) { c.Replicas = 2 },
		"Config.WithEtcd is for a server in the cluster":             func(c *Config) { c.WithEtcd = true },
		"flags for serve after -- are for a server in the":           func(c *Config) { c.Args = []string{"-v=2"} },
		"Config.Certificates \"cert-manager\": with Config.External": func(c *Config) { c.Certificates = CertManager },
		"Config.Certificates own requires Config.CABundle":           func(c *Config) { c.Certificates = OwnFiles },
		"Config.InsecureSkipTLSVerify excludes Config.CABundle, and Config.Certificates self": func(c *Config) {
			c.InsecureSkipTLSVerify = true
		},
		"Config.InsecureSkipTLSVerify excludes Config.CABundle, and Config.Certificates own": func(c *Config) {
			c.Certificates, c.InsecureSkipTLSVerify, c.CABundle = OwnFiles, true, []byte("x")
		},
	} {
		c := Config{Definition: shop(t), External: []string{"192.0.2.7"}, Storage: inDir}
		spoil(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a mistake with %q, got %v", want, err)
		}
	}
	c := Config{Definition: shop(t), Image: image, Storage: inDir, Certificates: OwnFiles}
	if err := c.Complete(); err == nil || !strings.Contains(err.Error(), `Config.Certificates "own": choose self`) {
		t.Errorf("files in the cluster: %v", err)
	}
}

func TestNotes_external(t *testing.T) {
	c := Config{Definition: shop(t), External: []string{"192.0.2.7"}, Storage: inDir}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if notes := c.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "--self-certify --service-name shop --service-namespace shop") {
		t.Errorf("with its own certificate: %q", notes)
	}
	c.Certificates, c.InsecureSkipTLSVerify = OwnFiles, true
	if notes := c.Notes(); len(notes) != 2 || !strings.Contains(notes[0], "does not verify the server") ||
		!strings.Contains(notes[1], "a certificate for shop.shop.svc") {
		t.Errorf("unverified: %q", notes)
	}
}

func TestNotes_whatIsLeftToTheOperator(t *testing.T) {
	c := Config{Definition: shop(t), Image: image, Storage: inDir, Certificates: SecretPrefix + "tls"}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if notes := c.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "the Secret tls") {
		t.Errorf("without an authority: %q", notes)
	}
	c.CABundle = []byte("x")
	if notes := c.Notes(); len(notes) != 0 {
		t.Errorf("with one: %q", notes)
	}
}

func TestKustomize_namesEveryFileInOrder(t *testing.T) {
	c := Config{Definition: shop(t), Image: image, Storage: inDir}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	files, err := c.Kustomize()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i, f := range files {
		if !strings.HasPrefix(string(f.Text), Mark+"\n") {
			t.Errorf("%s has no mark", f.Path)
		}
		if i > 0 {
			fmt.Fprintf(&want, "- %s\n", f.Path)
		}
	}
	if _, list, _ := strings.Cut(string(files[0].Text), "resources:\n"); list != want.String() || files[0].Path != "kustomization.yaml" {
		t.Errorf("%s lists\n%swant\n%s", files[0].Path, list, want.String())
	}
}

func TestWrite_folder(t *testing.T) {
	dir := t.TempDir()
	file := func(path, text string) File { return File{path, []byte(Mark + "\n" + text)} }
	write := func(dryRun bool, want string, files ...File) {
		t.Helper()
		changes, err := Write(dir, files, dryRun)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes {
			rel, err := filepath.Rel(dir, c.Path)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, filepath.ToSlash(rel)+" "+c.What)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("changes are %q, want %q", got, want)
		}
	}
	there := func() string {
		t.Helper()
		var all []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	write(true, "a.yaml created, t/b.yaml created", file("a.yaml", "1"), file("t/b.yaml", "1"))
	if got := there(); got != "" {
		t.Fatalf("a trial writes %s", got)
	}
	write(false, "a.yaml created, t/b.yaml created", file("a.yaml", "1"), file("t/b.yaml", "1"))
	if err := os.WriteFile(filepath.Join(dir, "own.yaml"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(false, "a.yaml unchanged, c.yaml created, t/b.yaml removed", file("a.yaml", "1"), file("c.yaml", "1"))
	write(false, "a.yaml changed, c.yaml unchanged", file("a.yaml", "2"), file("c.yaml", "1"))
	if _, err := Write(dir, []File{file("a.yaml", "3"), file("own.yaml", "1")}, false); err == nil ||
		!strings.Contains(err.Error(), "not written by this verb: "+filepath.Join(dir, "own.yaml")) {
		t.Errorf("a file of another is in the way: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "a.yaml")); err != nil || string(text) != Mark+"\n2" {
		t.Errorf("a.yaml is %q after a write that failed; %v", text, err)
	}
	if got := there(); got != "a.yaml c.yaml own.yaml t" {
		t.Errorf("there are %s", got)
	}
}
