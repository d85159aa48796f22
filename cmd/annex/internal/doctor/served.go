package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tries is the number of requests for a median.
const tries = 5

// checkDiscovery requests the list of resources as kubectl does. It subtracts the round trip to the cluster, which is
// not the server's fault.
func checkDiscovery(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if a := p.ask(ctx); a.refused {
		return unseen("the user of the kubeconfig may not get " + p.api.path())
	} else if a.problem != "" {
		return unseen("the server does not answer")
	}
	took, list, err := p.median(ctx, p.api.path())
	if err != nil {
		return mayNot("get "+p.api.path(), err)
	}
	way, _, err := p.median(ctx, "/version")
	if err != nil {
		return mayNot("get /version", err)
	}
	p.reader = readable(list)
	own := max(took-way, 0)
	timing := fmt.Sprintf(
		"%s answers in %s, and /version of the API server in %s (medians of %d requests)",
		p.api.path(),
		short(took),
		short(way),
		tries,
	)
	if own > p.options.Slow {
		return wrong(
			Broken,
			ReasonSlowDiscovery,
			"the answer takes %s, more than %s: each client of the cluster waits for it, kubectl with every command",
			short(own),
			p.options.Slow,
		).
			seenIn(timing).
			repairedBy("# The list of resources does not change: the server must not wait for storage or other servers.",
				fmt.Sprintf("kubectl -n %s top pods                          # check the CPU usage", p.api.Spec.Service.Namespace),
				fmt.Sprintf("kubectl get --raw %s >/dev/null -v=6   # measure the time again", p.api.path()))
	}
	if len(list) == 0 {
		return wrong(Broken, ReasonNothingServed, "the server's list of resources for the version is empty").seenIn(timing).
			repairedBy("# If you no longer need the version:", "kubectl delete apiservice "+p.name)
	}
	if f := p.freshness(ctx); f.State != "" {
		return f.seenIn(timing)
	}
	return ok("%d resources, in %s", len(list), short(own))
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

func (p *examination) median(ctx context.Context, path string) (time.Duration, []metav1.APIResource, error) {
	var all []time.Duration
	var list metav1.APIResourceList
	for range tries {
		a, err := p.host.get(ctx, path)
		if err == nil {
			err = a.failure()
		}
		if err != nil {
			return 0, nil, err
		}
		if err := json.Unmarshal(a.body, &list); err != nil {
			return 0, nil, fmt.Errorf("decode %s: %w", path, err)
		}
		all = append(all, a.took)
	}
	slices.Sort(all)
	return all[len(all)/2], list.APIResources, nil
}

// freshness checks the list of all groups, which the API server aggregates from each server's /apis, and caches.
func (p *examination) freshness(ctx context.Context) Finding {
	groups, err := p.host.discovered(ctx)
	if err != nil {
		return Finding{} // an API server before 1.30 has no such list
	}
	for _, g := range groups {
		for _, v := range g.Versions {
			if g.Name == p.api.Spec.Group && v.Version == p.api.Spec.Version && v.Freshness == apidiscovery.DiscoveryFreshnessStale {
				return wrong(Broken, ReasonStaleDiscovery, "the API server could not read the server's resources: its aggregated "+
					"discovery marks the version as Stale").
					repairedBy("# The server must answer /apis; the API server reads it again every minute.",
						"kubectl get --raw /apis/"+p.api.Spec.Group)
			}
		}
	}
	return Finding{}
}

// resource is a resource that can be listed and watched.
type resource struct{ name string }

func readable(list []metav1.APIResource) *resource {
	for _, r := range list {
		if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
			return &resource{r.Name}
		}
	}
	return nil
}

// endOfList is the annotation of the bookmark that ends the list of a watch. Informers wait for it.
const endOfList = "k8s.io/initial-events-end"

// checkWatchList watches a resource as informers do since Kubernetes 1.35: objects come as events, and a bookmark
// marks their end.
func checkWatchList(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if p.reader == nil {
		return unseen("the version has no resource with the verbs list and watch")
	}
	path := p.api.path() + "/" + p.reader.name
	events, took, err := p.watchList(ctx, path)
	var status *apierrors.StatusError
	switch {
	case apierrors.IsForbidden(err):
		return unseen("the user of the kubeconfig may not list and watch " + p.reader.name + " of all namespaces")
	case errors.Is(err, errStillComing):
		return unseen(
			fmt.Sprintf("%s: the list is not complete after %d objects in %s: use a longer --timeout", p.reader.name, events, short(took)),
		)
	case errors.As(err, &status):
		return wrong(
			Doubtful,
			ReasonNoWatchList,
			"%s cannot be listed by a watch: informers fall back to lists, which cost more memory",
			p.reader.name,
		).
			seenIn(err.Error())
	case err != nil:
		return wrong(
			Broken,
			ReasonNoEndOfList,
			"a watch of %s sends no bookmark with %s: informers wait for it, and never get their first list",
			p.reader.name,
			endOfList,
		).
			seenIn(fmt.Sprintf("%d events within %s, then: %v", events, short(took), err)).
			repairedBy("# A server that accepts sendInitialEvents=true must send the bookmark; check it with:",
				fmt.Sprintf("kubectl get --raw '%s?%s'", path, watchListQuery),
				"# Update the server: k8s.io/apiserver sends the bookmark since v0.32. Until then, for clients:",
				"export KUBE_FEATURE_WatchListClient=false")
	}
	return ok("%s: %d objects and the end of the list in %s", p.reader.name, events, short(took))
}

const watchListQuery = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"

// errStillComing reports a list that takes too long.
var errStillComing = errors.New("objects are still coming")

// watchList counts the events before the end of the list. It waits for each event as long as for a response, and for
// all of them a few times as long.
func (p *examination) watchList(ctx context.Context, path string) (events int, took time.Duration, err error) {
	const longest = 6
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	idle := time.AfterFunc(p.options.Patience, cancel)
	defer idle.Stop()
	response, err := p.host.open(ctx, path+"?"+watchListQuery)
	if err != nil {
		return 0, time.Since(began), ending(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return 0, time.Since(began), answer{status: response.StatusCode, body: body}.failure()
	}
	decoder := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object struct {
				metav1.ObjectMeta `json:"metadata"`
				Message           string
			}
		}
		if err := decoder.Decode(&event); err != nil {
			return events, time.Since(began), ending(ctx, err)
		}
		idle.Reset(p.options.Patience)
		switch {
		case event.Type == "ERROR":
			return events, time.Since(began), fmt.Errorf("an event ERROR: %s", event.Object.Message)
		case event.Type == "BOOKMARK" && event.Object.Annotations[endOfList] == "true":
			return events, time.Since(began), nil
		case event.Type != "BOOKMARK":
			events++
		}
		if time.Since(began) > longest*p.options.Patience {
			return events, time.Since(began), errStillComing
		}
	}
}

func ending(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return errors.New("nothing more")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the end of the watch")
	}
	return err
}

// checkOpenAPI reads the version's document of OpenAPI v3, which kubectl explain, apply and validation use. (OpenAPI
// v2 is one document of all groups; kubectl has not needed it since 1.27.)
func checkOpenAPI(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := p.host.read(ctx, "/openapi/v3", &index); err != nil {
		return mayNot("get /openapi/v3", err)
	}
	repair := []string{
		"# The API server reads the document from the server's /openapi/v3 every minute.",
		fmt.Sprintf("kubectl get --raw /openapi/v3/apis/%s/%s", p.api.Spec.Group, p.api.Spec.Version),
	}
	entry, found := index.Paths[strings.TrimPrefix(p.api.path(), "/")]
	if !found {
		return wrong(
			Broken,
			ReasonOpenAPIMissing,
			"the API server has no OpenAPI v3 document of the version: kubectl explain and kubectl apply do not have its fields",
		).
			seenIn("/openapi/v3 does not list " + strings.TrimPrefix(p.api.path(), "/")).
			repairedBy(repair...)
	}
	var document struct {
		Paths      map[string]json.RawMessage
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := p.host.read(ctx, entry.ServerRelativeURL, &document); err != nil {
		if apierrors.IsForbidden(err) {
			return mayNot("get "+entry.ServerRelativeURL, err)
		}
		return wrong(Broken, ReasonOpenAPIMissing, "the OpenAPI v3 document of the version cannot be read").
			seenIn(entry.ServerRelativeURL + ": " + err.Error()).repairedBy(repair...)
	}
	if len(document.Paths) == 0 {
		return wrong(Broken, ReasonOpenAPIMissing, "the OpenAPI v3 document of the version has no paths").repairedBy(repair...)
	}
	return ok("%d paths, %d schemas", len(document.Paths), len(document.Components.Schemas))
}
