package kinds

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

// differences returns the paths at which two values differ, with both values, at most limit.
func differences(theirs, ours any, at string, limit int, to *[]string) {
	if len(*to) >= limit {
		return
	}
	switch x := theirs.(type) {
	case map[string]any:
		if y, ok := ours.(map[string]any); ok {
			keys := maps.Clone(x)
			maps.Copy(keys, y)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				differences(x[key], y[key], at+"/"+key, limit, to)
			}
			return
		}
	case []any:
		if y, ok := ours.([]any); ok && len(x) == len(y) {
			for i := range x {
				differences(x[i], y[i], fmt.Sprintf("%s/%d", at, i), limit, to)
			}
			return
		}
	}
	a, errA := json.Marshal(theirs)
	b, errB := json.Marshal(ours)
	if errA != nil || errB != nil || string(a) != string(b) {
		*to = append(*to, fmt.Sprintf("%s: kube-apiserver: %.300s; annex: %.300s", at, a, b))
	}
}

// Discovery of both servers is equal, but for the addresses of the servers.
func TestDiscovery_ofEveryGroup(t *testing.T) {
	s, known := start(t), readKnown(t)
	paths := []string{"/api", "/apis", "/api/v1"}
	apis, err := s.theirs.Ask(t.Context(), http.MethodGet, "/apis", compare.JSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range list(apis.Body["groups"]) {
		paths = append(paths, "/apis/"+text(object(group)["name"]))
		for _, version := range list(object(group)["versions"]) {
			paths = append(paths, "/apis/"+text(object(version)["groupVersion"]))
		}
	}
	differ := 0
	for _, path := range paths {
		theirs, ours, err := s.ask(t.Context(), to("discovery", http.MethodGet, path, compare.JSON, nil))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, body := range []map[string]any{theirs.Body, ours.Body} {
			delete(body, "serverAddressByClientCIDRs")
			if groups := list(body["groups"]); groups != nil { // in the order of their priorities, which is no part of a group
				slices.SortFunc(groups, func(a, b any) int { return strings.Compare(text(object(a)["name"]), text(object(b)["name"])) })
			}
		}
		var found []string
		differences(theirs.Body, ours.Body, "", 20, &found)
		for _, line := range found {
			if !known.has(path, "discovery", line) {
				differ++
				t.Errorf("%s%s", path, line)
			}
		}
	}
	known.checkUsed(t, "discovery")
	fmt.Printf("kinds: %d discovery documents, %d differences\n", len(paths), differ)
}

// The OpenAPI documents of both servers are equal.
func TestOpenAPI_ofEveryGroup(t *testing.T) {
	s, known := start(t), readKnown(t)
	index, err := s.theirs.Ask(t.Context(), http.MethodGet, "/openapi/v3", compare.JSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	differ, documents := 0, slices.Sorted(maps.Keys(object(index.Body["paths"])))
	for _, path := range documents {
		theirs, ours, err := s.ask(t.Context(), to("openapi", http.MethodGet, "/openapi/v3/"+path, compare.JSON, nil))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, body := range []map[string]any{theirs.Body, ours.Body} {
			delete(object(body["info"]), "title")
			delete(object(body["info"]), "version")
		}
		var found []string
		differences(theirs.Body, ours.Body, "", 40, &found)
		shown := 0
		for _, line := range found {
			if known.has(path, "openapi", line) {
				continue
			}
			differ++
			if shown++; shown <= 12 {
				t.Errorf("%s%s", strings.TrimPrefix(path, "/"), line)
			}
		}
	}
	known.checkUsed(t, "openapi")
	fmt.Printf("kinds: %d OpenAPI documents, %d differences\n", len(documents), differ)
}
