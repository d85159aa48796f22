package apitest_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"
)

// FuzzLists sends lists with any query to both handlers: status, headers and bodies are the same.
func FuzzLists(f *testing.F) {
	for _, query := range []string{
		"", "limit=1", "limit=0", "limit=-1", "limit=many", "limit=1&limit=2", "limit=1;a", "limit=1&continue=bad", "continue=e30", "%zz",
		"x=y", "metadata.name=a",
		"resourceVersion=0", "resourceVersion=1", "resourceVersion=x", "resourceVersion=-1", "resourceVersion=99999999999",
		"resourceVersion=1&resourceVersionMatch=Exact", "resourceVersionMatch=Exact&resourceVersion=0",
		"resourceVersionMatch=Other&resourceVersion=1", "resourceVersionMatch=NotOlderThan&resourceVersion=0", "resourceVersionMatch=Exact",
		"fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3Da%2Fb", "fieldSelector=metadata.name!%3Da",
		"fieldSelector=metadata.name%3Da,metadata.name%3Db", "fieldSelector=metadata.namespace%3Dother", "fieldSelector=bad%3D1",
		"fieldSelector=spec.size%3Dsmall", "fieldSelector=%3D%3D%3D",
		"labelSelector=color%3Da", "labelSelector=color", "labelSelector=!color", "labelSelector=%3D%3D", "labelSelector=color+in+()",
		"labelSelector=color+in+(a,b)&limit=1", "labelSelector=color!%3Da&limit=1", "labelSelector=color%3Da&labelSelector=color%3Db",
		"watch=false", "watch=0", "watch=false&sendInitialEvents=true", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=false", "allowWatchBookmarks=true", "timeoutSeconds=1", "timeoutSeconds=x", "shardSelector=x", "shardSelector=",
		"pretty=true", "pretty=false", "pretty=0", "pretty", "dryRun=All", "fieldManager=a", "kind=x&apiVersion=y",
		"includeUninitialized=true", "orderBy=metadata.name",
	} {
		f.Add(query, false)
		f.Add(query, true)
	}
	config := annextest.StartWith(f, shop(), annex.Options{Storage: memory.Storage()})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(client.CloseIdleConnections)
	for _, name := range []string{"a", "b", "c"} {
		document := fmt.Sprintf(
			`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q,"labels":{"color":%[1]q}},"spec":{"size":"small"}}`,
			name,
		)
		made, err := client.Post(config.Host+widgetsPath, jsonType, strings.NewReader(document))
		if err != nil || made.StatusCode != http.StatusCreated {
			f.Fatalf("create %s: %v, %v", name, made, err)
		}
		made.Body.Close()
	}
	ask := func(t *testing.T, query, accept string, compressed bool) (string, bool) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+widgetsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.URL.RawQuery = query
		request.Header.Set("Accept", accept)
		request.Header.Set("Accept-Encoding", map[bool]string{false: "identity", true: "gzip"}[compressed])
		response, err := client.Do(request)
		if err != nil {
			return "", false // no client can send it
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatalf("%q as %s: %v", query, accept, err)
		}
		var answer bytes.Buffer
		fmt.Fprintln(&answer, response.StatusCode)
		for _, name := range slices.Sorted(maps.Keys(response.Header)) {
			if name != "Audit-Id" && name != "Date" {
				fmt.Fprintln(&answer, name, response.Header[name])
			}
		}
		answer.Write(body)
		return answer.String(), true
	}
	f.Fuzz(func(t *testing.T, query string, compressed bool) {
		asked := (&url.URL{RawQuery: query}).Query()
		if watch, ok := asked["watch"]; ok && watch[0] != "false" && watch[0] != "0" || asked.Has("timeout") {
			t.Skip("a watch goes on, and a request that is out of time may have been answered in time")
		}
		ours, sent := ask(t, query, jsonType, compressed)
		theirs, _ := ask(t, query, byUpstream(jsonType), compressed)
		if sent && ours != theirs {
			t.Errorf("%q: %s\nupstream:\n%s", query, ours, theirs)
		}
	})
}
