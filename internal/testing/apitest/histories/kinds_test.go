package histories

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
)

// gadgets defines a custom resource in two versions.
func gadgets() object {
	version := func(name string, stored bool) object {
		return object{"name": name, "served": true, "storage": stored, "schema": object{"openAPIV3Schema": object{
			"type": "object", "properties": object{"spec": object{"type": "object", "properties": object{
				"size": object{"type": "string", "enum": []string{"small", "large"}},
			}}},
		}}}
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "gadgets.stable.example.com"},
		"spec": object{
			"group": "stable.example.com", "scope": "Namespaced", "names": object{"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
			"versions": []object{version("v1", true), version("v2", false)},
		},
	}
}

func TestHistory_ofCustomResources(t *testing.T) {
	t.Parallel()
	server := shop()
	server.ControlPlane = controlplane.New(controlplane.Options{})
	kept := map[schema.GroupResource]annex.History{{Group: "stable.example.com", Resource: "gadgets"}: {Age: time.Hour}}
	c := start(t, server, annex.Options{HistoryOf: kept})
	c.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", gadgets())
	const api, history = "/apis/stable.example.com/v1/namespaces/default/gadgets", "/history/stable.example.com/v1/namespaces/default/gadgets"
	testwait.Until(t, "gadgets are served", func() bool {
		code, _ := c.do("GET", "/query/stable.example.com/v1/gadgets", nil)
		return code == http.StatusOK
	})
	c.must("POST", api, object{
		"apiVersion": "stable.example.com/v1", "kind": "Gadget", "metadata": object{"name": "g"}, "spec": object{"size": "small"},
	})
	large := c.must("PATCH", api+"/g?fieldManager=anna", object{"spec": object{"size": "large"}},
		"Content-Type", "application/merge-patch+json")
	items := c.items(history + "/g")
	if len(items) != 2 || items[0]["user"] == "" || fmt.Sprint(items[0]["managers"]) != "[anna]" || fmt.Sprint(items[0]["changes"]) !=
		"[map[from:small path:spec.size to:large]]" {
		t.Errorf("the history is %v", items)
	}
	past := c.must("GET", "/history/stable.example.com/v2/namespaces/default/gadgets/g?at="+fmt.Sprint(items[1]["revision"]), nil)
	if past["apiVersion"] != "stable.example.com/v2" || at(past, "spec", "size") != "small" {
		t.Errorf("the first revision in the other version is %v", past)
	}
	if undone := c.must("POST", history+"/g", object{"undo": version(large)}); at(undone, "spec", "size") != "small" {
		t.Errorf("undone: %v", undone)
	}
	c.must("DELETE", api+"/g", nil)
	deleted := c.items(history + "?deleted=true")
	if len(deleted) != 1 || deleted[0]["name"] != "g" || deleted[0]["namespace"] != "default" {
		t.Fatalf("deleted are %v", deleted)
	}
	if again := c.must("POST", history+"/g", object{"restore": deleted[0]["revision"]}); at(again, "spec", "size") != "small" {
		t.Errorf("restored: %v", again)
	}
	c.described("history/stable.example.com/v2", "/history/stable.example.com/v2/namespaces/{namespace}/gadgets/{name}")
	c.jane().refused(403, "GET", history+"/g", nil, `cannot get resource "gadgets"`)
	c.jane().refused(403, "GET", history+"/none", nil, `cannot get resource "gadgets"`)
}

// secrets returns a server with Secrets.
func secrets(t *testing.T, options annex.Options) *client {
	t.Helper()
	server := shop()
	server.ControlPlane = controlplane.New(controlplane.Options{})
	c := start(t, server, options)
	data := func(text string) object { return object{"pass": base64.StdEncoding.EncodeToString([]byte(text))} }
	c.must("POST", "/api/v1/namespaces/default/secrets", object{
		"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "s"}, "data": data("old"),
	})
	c.must("PATCH", "/api/v1/namespaces/default/secrets/s", object{"data": data("new")}, "Content-Type", "application/merge-patch+json")
	return c
}

func TestHistory_ofSecrets_isRefused(t *testing.T) {
	t.Parallel()
	c := secrets(t, annex.Options{})
	const history = "/history/core/v1/namespaces/default/secrets"
	for _, path := range []string{"/s", "/none", "/s?at=-1us", "/s?from=-1us", "?deleted=true"} {
		c.refused(403, "GET", history+path, nil, "the server does not show the history of secrets", "option history-of-secrets")
	}
	c.refused(403, "POST", history+"/s", object{"restore": "-1us"}, "does not show the history of secrets")
	c.refused(403, "GET", "/query/core/v1/secrets?at=-1us", nil, "does not show the history of secrets")
	if code, _ := c.do("GET", "/query/core/v1/secrets", nil); code != http.StatusOK {
		t.Errorf("secrets of the present: %d", code)
	}
}

func TestHistory_ofSecrets_permitted(t *testing.T) {
	t.Parallel()
	c := secrets(t, annex.Options{HistoryOfSecrets: true})
	if items := c.items("/history/core/v1/namespaces/default/secrets/s"); len(items) != 2 {
		t.Errorf("the history is %v", items)
	}
	c.jane().refused(403, "GET", "/history/core/v1/namespaces/default/secrets/s", nil, `cannot get resource "secrets"`)
}

// kept returns the number of kept revisions in the metrics.
func (c *client) kept() (revisions int) {
	c.t.Helper()
	response, err := c.http.Get(c.config.Host + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if name, value, _ := strings.Cut(lines.Text(), " "); strings.HasPrefix(name, "annex_storage_kept_revisions") {
			number, _ := strconv.ParseFloat(value, 64)
			revisions += int(number)
		}
	}
	return revisions
}

func TestHistory_encrypted_isEncryptedOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: ['widgets.shop.example.com']\n" +
		"  providers: [{aescbc: {keys: [{name: one, secret: " + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32)) + "}]}}]\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	c := start(t, shop(), annex.Options{
		Storage: embedded.Dir(filepath.Join(data, "objects")), EncryptionConfigFile: file, HistoryRevisions: -1, HistoryAge: -1,
	})
	first := c.create("w", object{"size": "small"}, object{"note": "hidden-text-one"})
	second := c.merge("w", "anna", object{"metadata": object{"labels": object{"note": "hidden-text-two"}}})
	for i := range 10 {
		c.merge("w", "anna", object{"metadata": object{"labels": object{"note": fmt.Sprint("hidden-text-", i)}}})
	}
	testwait.Until(t, "revisions have been moved", func() bool { return c.kept() >= 11 })
	if got := c.must("GET", history+"/w?at="+version(first), nil); at(got, "metadata", "labels", "note") != "hidden-text-one" {
		t.Errorf("the first revision is %v", got)
	}
	if got := c.must("POST", history+"/w", object{"restore": version(second)}); at(got, "metadata", "labels", "note") != "hidden-text-two" {
		t.Errorf("restored: %v", got)
	}
	if err := filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte("hidden-text")) {
			t.Errorf("%s has a text that is encrypted", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// described reports errors unless the OpenAPI v3 document of a version has paths, and all schemas that it refers to.
func (c *client) described(version string, paths ...string) {
	c.t.Helper()
	if at(c.must("GET", "/openapi/v3", nil), "paths", version) == nil {
		c.t.Errorf("the list of documents has no %s", version)
	}
	document := c.must("GET", "/openapi/v3/"+version, nil)
	for _, path := range paths {
		if at(document, "paths", path, "get", "responses", "200") == nil {
			c.t.Errorf("%s does not describe %s", version, path)
		}
	}
	text, err := json.Marshal(document)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`"\$ref":"#/components/schemas/([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		if at(document, "components", "schemas", match[1]) == nil {
			c.t.Errorf("%s has no schema %s", version, match[1])
		}
	}
}

func TestHistory_openAPI(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	const widgets = "/history/shop.example.com/v1beta1/namespaces/{namespace}/widgets"
	c.described("history/shop.example.com/v1beta1", widgets, widgets+"/{name}", "/history/shop.example.com/v1beta1/widgets")
	c.described("history/shop.example.com/v1", "/history/shop.example.com/v1/shelves", "/history/shop.example.com/v1/shelves/{name}")
	c.described("history/core/v1", "/history/core/v1/namespaces/{name}")
}
