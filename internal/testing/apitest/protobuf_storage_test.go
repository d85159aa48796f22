package apitest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

const leaseResource = "leases.zoo.example.com"

var asProtobuf = map[schema.GroupResource]string{schema.ParseGroupResource(leaseResource): protobufType}

// zooVerb runs a verb of the program zoo, and returns its output.
func zooVerb(t *testing.T, args ...string) (string, error) {
	t.Helper()
	p := prepareProgram(t, "zoo")
	p.Args = append([]string{p.Path}, args...)
	out, err := p.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &p.log)
	}
	return string(out), err
}

func mustZoo(t *testing.T, args ...string) string {
	t.Helper()
	out, err := zooVerb(t, args...)
	if err != nil {
		t.Fatalf("zoo %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// squeezed is a table with one space between columns.
func squeezed(table string) string { return strings.Join(strings.Fields(table), " ") }

// dumped returns the lines of a dump, by key.
func dumped(t *testing.T, args ...string) map[string]maintenance.Line {
	t.Helper()
	all := map[string]maintenance.Line{}
	for line := range strings.Lines(mustZoo(t, append([]string{"storage", "dump"}, args...)...)) {
		var l maintenance.Line
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		all[l.Key] = l
	}
	return all
}

// serveZoo calls work while a server runs.
func serveZoo(t *testing.T, name string, server annex.Server, options annex.Options, work func(c *client)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) { work(connect(t, annextest.StartWith(t, server, options))) }) {
		t.FailNow()
	}
}

func (c *client) createLease(name string) {
	c.t.Helper()
	c.post(leasesPath, envelope(c.t, "zoo.example.com/v1", "Lease", lease(name, "me")), "Content-Type", protobufType).want(201)
}

func TestStorageMediaType_default(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		kind    *annex.KindBuilder[coordinationv1.Lease]
		options annex.Options
		want    string // the media type in a dump
	}{
		{"embedded", leases(), annex.Options{Storage: embedded.Dir("")}, ""},
		{"memory", leases(), annex.Options{Storage: memory.Storage()}, ""},
		{"a developer's protobuf in memory", leases().StoredMediaType(protobufType), annex.Options{Storage: memory.Storage()}, protobufType},
		{"files", leases(), annex.Options{Storage: files.Dir("")}, ""},
		{"a developer's protobuf", leases().StoredMediaType(protobufType), annex.Options{Storage: embedded.Dir("")}, protobufType},
		{"an operator's choice", leases().StoredMediaType(protobufType),
			annex.Options{Storage: embedded.Dir(""), StorageMediaTypeOf: map[schema.GroupResource]string{schema.ParseGroupResource(leaseResource): jsonType}}, ""},
		{"an operator's other choice", leases().StoredMediaType(jsonType),
			annex.Options{Storage: embedded.Dir(""), StorageMediaTypeOf: map[schema.GroupResource]string{schema.ParseGroupResource(leaseResource): protobufType}},
			protobufType},
		{"a version without protobuf", leases().StoredAs("v1alpha1"), annex.Options{Storage: embedded.Dir("")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.options.DataDir = t.TempDir()
			serveZoo(t, "serve", zoo(test.kind, crates()), test.options, func(c *client) {
				c.createLease("a")
				c.post(cratesPath, `{"apiVersion":"zoo.example.com/v1","kind":"Crate","metadata":{"name":"a"},"contents":"bananas"}`).want(201)
				all := dumped(t, "--data-dir", test.options.DataDir)
				if l := all["/zoo.example.com/leases/default/a"]; l.MediaType != test.want || !strings.Contains(string(l.Value), `"me"`) ||
					!strings.HasPrefix(string(l.Value), `{"kind":"Lease","apiVersion":"zoo.example.com/v1`) {
					t.Errorf("a lease: %q %s %q", l.MediaType, l.Value, l.Base64)
				}
				if l := all["/zoo.example.com/crates/default/a"]; l.MediaType != "" || !strings.Contains(string(l.Value), "bananas") {
					t.Errorf("a crate: %+v", l)
				}
			})
		})
	}
}

func TestStorageMediaType_invalid(t *testing.T) {
	t.Parallel()
	of := func(resource, mediaType string) annex.Options {
		return annex.Options{
			Storage:            memory.Storage(),
			StorageMediaTypeOf: map[schema.GroupResource]string{schema.ParseGroupResource(resource): mediaType},
		}
	}
	inFiles := of(leaseResource, protobufType)
	inFiles.Storage, inFiles.DataDir = files.Dir(""), t.TempDir()
	plainFiles := annex.Options{Storage: files.Dir(""), DataDir: t.TempDir()}
	for name, test := range map[string]struct {
		server  annex.Server
		options annex.Options
		want    string
	}{
		"no media type": {zoo(leases().StoredMediaType("protobuf"), crates()), annex.Options{Storage: memory.Storage()},
			`kind Lease (leases.zoo.example.com): StoredMediaType("protobuf"): choose application/json or application/vnd.kubernetes.protobuf`},
		"YAML": {zoo(), of(leaseResource, yamlType), "Options.StorageMediaTypeOf leases.zoo.example.com=application/yaml: " +
			"choose application/json or application/vnd.kubernetes.protobuf"},
		"a kind without": {zoo(leases(), crates().StoredMediaType(protobufType)), annex.Options{Storage: memory.Storage()},
			"Go type apitest_test.Crate of stored objects has no protobuf methods: generate them with annex generate"},
		"an operator's": {zoo(), of("crates.zoo.example.com", protobufType), "Options.StorageMediaTypeOf " +
			"crates.zoo.example.com=application/vnd.kubernetes.protobuf: the Go type apitest_test.Crate of stored objects has no " +
			"protobuf methods: generate them with annex generate"},
		"a version without": {zoo(leases().StoredAs("v1alpha1"), crates()), of(leaseResource, protobufType), "Go type apitest_test.Lease " +
			"of stored objects has no protobuf"},
		"no such resource": {zoo(), of("lions.zoo.example.com", jsonType), "Options.StorageMediaTypeOf " +
			"lions.zoo.example.com=application/json: the server does not store this resource; stored resources: " +
			"clusterrolebindings.rbac.authorization.k8s.io, " +
			"clusterroles.rbac.authorization.k8s.io, crates.zoo.example.com, leases.zoo.example.com, namespaces, " +
			"rolebindings.rbac.authorization.k8s.io, roles.rbac.authorization.k8s.io"},
		"in files": {zoo(), inFiles, "Options.StorageMediaTypeOf leases.zoo.example.com=application/vnd.kubernetes.protobuf: " +
			"leases.zoo.example.com are stored in files, whose YAML files users read and edit, so the media type must be " +
			"application/json: add " +
			"Options.StorageMediaTypeOf leases.zoo.example.com=application/json"},
		"in files, a developer": {zoo(leases().StoredMediaType(protobufType), crates()), plainFiles,
			`StoredMediaType("application/vnd.kubernetes.protobuf") of kind Lease: leases.zoo.example.com are stored in files`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			instance, err := annex.New(t.Context(), test.server, test.options)
			if err == nil {
				instance.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	// Objects that come to files in another way become YAML.
	data, to := t.TempDir(), t.TempDir()
	serveZoo(t, "serve", zoo(), annex.Options{Storage: embedded.Dir(""), DataDir: data, StorageMediaTypeOf: asProtobuf}, func(c *client) { c.createLease("a") })
	mustZoo(t, "storage", "migrate", "--from", "embedded", "--data-dir", data, "--to", "files", "--to-data-dir", to)
	serveZoo(t, "serve files", zoo(), annex.Options{DataDir: to, Storage: files.Dir("")}, func(c *client) {
		testwait.Until(t, "the object has its file", func() bool {
			content, err := os.ReadFile(filepath.Join(to, "objects/zoo.example.com/leases/default/a.yaml"))
			return err == nil && strings.Contains(string(content), "holderIdentity: me")
		})
		if got := c.get(leasesPath + "/a").want(200); got.str("spec", "holderIdentity") != "me" {
			t.Errorf("got %s", got.raw)
		}
	})
	// And back again, where they become protobuf when they are next written, if that is configured.
	back := t.TempDir()
	mustZoo(t, "storage", "migrate", "--from", "files", "--data-dir", to, "--to", "embedded", "--to-data-dir", back)
	if out := mustZoo(
		t,
		"storage",
		"rewrite",
		"--data-dir",
		back,
		"--resource",
		leaseResource,
		"--storage-media-type-of",
		leaseResource+"="+protobufType,
	); !strings.Contains(
		out,
		"1 checked, 1 rewritten, 0 already current; stored now: 1 with identity; as 1 v1, application/vnd.kubernetes.protobuf",
	) {
		t.Error(out)
	}
}

func TestStorageMediaType_change(t *testing.T) {
	t.Parallel()
	for name, encrypt := range map[string]bool{"in plain text": false, "encrypted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const count = 20
			data, key := t.TempDir(), "identity"
			flags := []string{"--data-dir", data}
			options := annex.Options{
				Storage:            embedded.Dir(""),
				DataDir:            data,
				StorageMediaTypeOf: map[schema.GroupResource]string{schema.ParseGroupResource(leaseResource): jsonType},
			}
			if encrypt {
				options.EncryptionConfigFile = filepath.Join(t.TempDir(), "encryption.yaml")
				writeFile(t, options.EncryptionConfigFile, encryptionRule(leaseResource, keyed("aesgcm", "key1", secret1)))
				flags, key = append(flags, "--encryption-provider-config", options.EncryptionConfigFile), "aesgcm key1"
			}
			with := func(verb string, more ...string) []string {
				return append(append([]string{"storage", verb}, flags...), more...)
			}
			var before string
			serveZoo(t, "fill", zoo(), options, func(c *client) {
				for i := range count {
					c.createLease(fmt.Sprint("l", i))
				}
				before = string(c.get(leasesPath).raw)
				if out := string(c.get("/metrics").raw); !strings.Contains(out, "annex_storage_encryption_info") {
					t.Errorf("metrics: %s", out)
				}
			})
			options.StorageMediaTypeOf = asProtobuf
			flags = append(flags, "--storage-media-type-of", leaseResource+"="+protobufType)
			if out := squeezed(
				mustZoo(t, with("stats")...),
			); !strings.Contains(
				out,
				"leases.zoo.example.com v1, application/json (until storage rewrite) 20",
			) {
				t.Errorf("stats: %s", out)
			}
			if out := squeezed(
				mustZoo(t, append([]string{"describe"}, flags...)...),
			); !strings.Contains(
				out,
				"media type application/vnd.kubernetes.protobuf (operator: --storage-media-type-of ",
			) {
				t.Errorf("describe: %s", out)
			}
			serveZoo(t, "both", zoo(), options, func(c *client) {
				after := string(c.get(leasesPath).raw)
				if items := func(s string) string { return s[strings.Index(s, `"items"`):] }; items(after) != items(before) {
					t.Errorf("listed %s, was %s", after, before)
				}
				c.do(http.MethodPatch, leasesPath+"/l0", `{"spec":{"holderIdentity":"you"}}`, "Content-Type", mergePatch).want(200)
				if out := squeezed(
					mustZoo(t, with("stats")...),
				); !strings.Contains(out, "application/json (until storage rewrite) 19") ||
					!strings.Contains(out, "leases.zoo.example.com v1, application/vnd.kubernetes.protobuf 1") {
					t.Errorf("stats: %s", out)
				}
				metrics := string(c.get("/metrics").raw)
				if want := `annex_storage_objects{group="zoo.example.com",media_type="application/json",resource="leases",version="v1"} 20`; !strings.Contains(
					metrics,
					want,
				) {
					t.Errorf("metrics have no %s", want)
				}
				want := fmt.Sprintf("leases.zoo.example.com: 20 checked, 19 rewritten, 1 already current; stored now: 20 with %s; as 20 v1, "+
					"application/vnd.kubernetes.protobuf\n", key)
				if out := mustZoo(t, with("rewrite", "--resource", leaseResource)...); out != want {
					t.Errorf("rewrite: %s", out)
				}
				var report []maintenance.Rewritten
				if err := json.Unmarshal(
					[]byte(mustZoo(t, with("rewrite", "-o", "json", "--resource", leaseResource)...)),
					&report,
				); err != nil || len(report) != 1 || report[0].Current != count || len(report[0].StoredAs) != 1 ||
					report[0].StoredAs[0].Objects != count {
					t.Errorf("rewrite -o json: %v %+v", err, report)
				}
			})
			if out := mustZoo(t, with("verify")...); !strings.Contains(out, " 0 damages, 0 warnings") {
				t.Errorf("verify: %s", out)
			}
			backup, restored := filepath.Join(t.TempDir(), "backup"), t.TempDir()
			mustZoo(t, with("backup", "--to", backup)...)
			flags[1] = restored
			mustZoo(t, with("restore", "--from", backup)...)
			options.DataDir = restored
			serveZoo(t, "restored", zoo(), options, func(c *client) {
				if got := c.get(leasesPath + "/l0").want(200); got.str("spec", "holderIdentity") != "you" {
					t.Errorf("restored: %s", got.raw)
				}
			})
		})
	}
}

// TestStoredVersion_stillInUse_cannotBeRemoved keeps a version from being removed too early.
func TestStoredVersion_stillInUse_cannotBeRemoved(t *testing.T) {
	t.Parallel()
	only := func() *annex.KindBuilder[coordinationv1.Lease] {
		return annex.KindOf[coordinationv1.Lease, coordinationv1.LeaseList]("leases", zooV1)
	}
	for _, storage := range []annex.Storage{embedded.Dir(""), files.Dir("")} {
		t.Run(storage.Name(), func(t *testing.T) {
			t.Parallel()
			options := annex.Options{DataDir: t.TempDir(), Storage: storage}
			const old = "3 leases.zoo.example.com as v1beta1, application/json"
			serveZoo(t, "old", zoo(leases().StoredAs("v1beta1"), crates()), options, func(c *client) {
				for i := range 3 {
					c.createLease(fmt.Sprint("old", i))
				}
			})
			_, err := annex.New(t.Context(), zoo(only(), crates()), options)
			if want := "the storage has objects that this server cannot decode: " + old + "; declare the missing kinds and versions " +
				"again, Unserved if clients should not use them, and remove them after storage rewrite; Options.ServeDespiteUndecodable " +
				"serves all other objects; nothing was changed"; err == nil || err.Error() != want {
				t.Fatalf("got %v, want %s", err, want)
			}

			options.ServeDespiteUndecodable = true
			serveZoo(t, "all the same", zoo(only(), crates()), options, func(c *client) {
				c.createLease("new")
				c.get(leasesPath + "/new").want(200)
				c.get(leasesPath+"/old0").refused(500, metav1.StatusReasonInternalError, "")
				c.get(cratesPath).want(200)
				if metrics := string(c.get("/metrics").raw); !strings.Contains(metrics, `resource="leases",version="v1beta1"} 3`) {
					t.Error("the metrics have no objects of v1beta1")
				}
				c.delete(leasesPath+"/old0?ignoreStoreReadErrorWithClusterBreakingPotential=true", nil).want(200)
				c.delete(leasesPath+"/new", nil).want(200)
			})
			options.ServeDespiteUndecodable = false

			if out := mustZoo(
				t,
				"storage",
				"stats",
				"--storage",
				storage.Name(),
				"--data-dir",
				options.DataDir,
			); !strings.Contains(
				out,
				"(until storage rewrite)",
			) {
				t.Errorf("stats: %s", out)
			}
			mustZoo(t, "storage", "rewrite", "--storage", storage.Name(), "--data-dir", options.DataDir)
			serveZoo(t, "new", zoo(only(), crates()), options, func(c *client) {
				if got := fmt.Sprint(c.get(leasesPath).want(200).names()); got != "[old1 old2]" {
					t.Errorf("listed %s", got)
				}
			})
		})
	}
}
