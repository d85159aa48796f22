package apitest_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/memory"
)

// watched is the complete response of a watch.
type watched struct {
	code   int
	header http.Header
	frames [][]byte
	err    error
}

// readWatch reads frames until the deletion of the object last, or all frames.
func readWatch(response *http.Response, last string) (got watched) {
	defer response.Body.Close()
	got.code, got.header = response.StatusCode, response.Header
	got.header.Del("Date")
	got.header.Del("Audit-Id")
	from := response.Body
	if got.header.Get("Content-Encoding") == "gzip" {
		if from, got.err = gzip.NewReader(response.Body); got.err != nil {
			return got
		}
	}
	reader, protobuf := bufio.NewReader(
		from,
	), strings.Contains(got.header.Get("Content-Type"), "stream=watch") &&
		strings.Contains(got.header.Get("Content-Type"), "protobuf")
	for {
		var frame []byte
		if !protobuf {
			frame, got.err = reader.ReadBytes('\n')
		} else {
			var length uint32
			if got.err = binary.Read(reader, binary.BigEndian, &length); got.err == nil {
				frame = make([]byte, length)
				_, got.err = io.ReadFull(reader, frame)
			}
		}
		if len(frame) > 0 {
			got.frames = append(got.frames, frame)
		}
		if got.err == io.EOF {
			got.err = nil
			return got
		}
		if got.err != nil || bytes.Contains(frame, []byte("DELETED")) && bytes.Contains(frame, []byte(last)) {
			return got
		}
	}
}

// Watches have a write loop of their own. Each is also sent to upstream's handlers of the same server, while objects
// change: status, headers and every event are the same.
func TestWatch_events_likeUpstream(t *testing.T) {
	notOn(t, cacheWaits, etcd.Name)
	t.Parallel()
	server := shop()
	server.Groups = append(server.Groups, stackServer(stacks()).Groups...)
	// Watches from revisions older than its history end with an error.
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), HistoryAge: -1, HistoryRevisions: 150})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	put := func(name, env, size string) string {
		labels := fields{}
		if env != "" {
			labels = fields{"env": env, "html": "a-b"}
		}
		return c.create(
			name,
			spec(fields{"size": size, "options": fields{"html": "<&>\u2028"}}),
			metadata(fields{"labels": labels}),
		).ResourceVersion
	}
	versions := []string{put("w00", "dev", "small")}
	for i := range 20 {
		versions = append(versions, put(fmt.Sprintf("x%02d", i), one("dev", "prod", ""), one("small", "large")))
		c.post(stacksPath, stack(fmt.Sprintf("x%02d", i), fields{})).want(201)
	}
	expired := versions[0]
	for i := 0; c.get(widgetsPath+query("resourceVersion", expired, "resourceVersionMatch", "Exact")).code != 410; i++ {
		versions = append(
			versions,
			c.patch(mergePatch, widgetsPath+"/w00", fields{"metadata": fields{"annotations": fields{"n": fmt.Sprint(i)}}}).
				want(200).
				str("metadata", "resourceVersion"),
		)
		if i == 10000 {
			t.Fatal("nothing was compacted")
		}
	}
	// The selectors, each with the last deleted object that it matches.
	selectors := []struct{ key, value, last string }{
		{"", "", "w01"},
		{"", "", "w01"},
		{"", "", "w01"},
		{
			"labelSelector",
			"env=dev",
			"m-dev",
		},
		{"labelSelector", "env in (dev,prod),html", "w01"},
		{"labelSelector", "!env", "m-none"},
		{"labelSelector", "html!=a-b", "m-none"},
		{"labelSelector", "env=,", "w01"},
		{
			"fieldSelector",
			"spec.size=small",
			"m-dev",
		},
		{"fieldSelector", "spec.size!=small", "w01"},
		{"fieldSelector", "metadata.name=w01", "w01"},
		{
			"fieldSelector",
			"metadata.name=missing",
			"missing",
		},
		{"fieldSelector", "metadata.namespace=default", "w01"},
		{"fieldSelector", "spec.nothing=1", "w01"},
	}
	kinds := map[string]int{}
	for round := range 8 {
		put("w01", "prod", "large")
		put("m-dev", "dev", "small")
		put("m-prod", "prod", "large")
		put("m-none", "", "small")
		c.post(stacksPath, stack("w01", fields{})).want(201)

		type pair struct {
			asked     string
			got, want watched
		}
		var reading sync.WaitGroup
		var pairs []*pair
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		for range 30 {
			q, selector := url.Values{}, selectors[random.IntN(len(selectors))]
			path := one(
				widgetsPath,
				widgetsPath,
				widgetsBetaPath,
				"/apis/shop.example.com/v1/widgets",
				"/apis/shop.example.com/v1/watch/namespaces/default/widgets",
				"/apis/shop.example.com/v1/watch/namespaces/default/widgets/w01",
				stacksPath,
				stacksBetaPath,
			)
			if strings.HasSuffix(path, "/w01") || path == stacksPath || path == stacksBetaPath {
				selector = selectors[0]
			}
			if selector.key != "" {
				q.Set(selector.key, selector.value)
			}
			q.Set("watch", one("1", "true"))
			switch random.IntN(6) {
			case 0:
				q.Set("resourceVersion", one(append([]string{"0", "", expired, "99999999999999999", "x"}, versions[len(versions)-5:]...)...))
			case 1:
				q.Set("resourceVersion", versions[len(versions)-1])
			case 2, 3:
				q.Set("sendInitialEvents", one("true", "true", "true", "false", "maybe"))
				q.Set("resourceVersionMatch", one("NotOlderThan", "NotOlderThan", "NotOlderThan", "Exact"))
				q.Set("resourceVersion", one("", "0", versions[len(versions)-1]))
			}
			if random.IntN(2) == 0 {
				q.Set("allowWatchBookmarks", "true")
			}
			if random.IntN(10) == 0 {
				q.Set(one("pretty", "timeout", "limit", "timeoutSeconds", "continue"), one("1", "x", "600"))
			}
			if q.Get("timeoutSeconds") == "1" {
				q.Set("timeoutSeconds", "600")
			}
			headers := []string{"User-Agent", one("annex-test", "curl/8"), "Accept-Encoding", one("gzip", "identity")}
			form := one(
				jsonType,
				jsonType,
				"*/*",
				jsonType+", */*",
				jsonType+";stream=watch",
				"",
				protobufType+","+jsonType,
				protobufType,
				jsonType+";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			)
			twin := form
			switch form {
			case jsonType, "*/*", "", jsonType + ", */*":
				twin = unremembered
			case jsonType + ";stream=watch":
				twin = form + ";answered=upstream"
			case protobufType:
				twin = protobufType + ";answered=upstream"
			case protobufType + "," + jsonType:
				twin = protobufType + ";answered=upstream," + unremembered
			}
			path += "?" + q.Encode()
			p := &pair{asked: fmt.Sprintf("%s as %q with %v", path, form, headers)}
			pairs = append(pairs, p)
			for _, half := range []struct {
				accept string
				into   *watched
			}{{form, &p.got}, {twin, &p.want}} {
				response := c.send(ctx, http.MethodGet, path, nil, append(slices.Clone(headers), "Accept", half.accept)...)
				if strings.Contains(response.Header.Get("Content-Type"), "protobuf") {
					kinds["protobuf"]++
				}
				reading.Go(func() { *half.into = readWatch(response, `"`+selector.last+`"`) })
			}
		}
		for i := range 40 {
			name := fmt.Sprintf("x%02d", random.IntN(20))
			switch random.IntN(4) {
			case 0:
				if c.do(http.MethodDelete, widgetsPath+"/"+name, nil).code == 404 {
					versions = append(versions, put(name, one("dev", "prod", ""), one("small", "large")))
				}
			case 1:
				c.do(
					http.MethodPatch,
					widgetsPath+"/"+name,
					fields{"metadata": fields{"labels": fields{"env": one("dev", "prod")}}},
					"Content-Type",
					mergePatch,
				)
			case 2:
				c.do(http.MethodPatch, widgetsPath+"/"+name, fields{"spec": fields{"size": one("small", "large")}}, "Content-Type", mergePatch)
			default:
				c.do(
					http.MethodPatch,
					stacksPath+"/"+name,
					fields{"metadata": fields{"annotations": fields{"n": fmt.Sprint(round, i)}}},
					"Content-Type",
					mergePatch,
				)
			}
		}
		versions = append(versions, put("missing", "", "small"))
		for _, name := range []string{"missing", "m-none", "m-dev", "m-prod", "w01"} {
			c.delete(widgetsPath+"/"+name, nil).want(200)
		}
		c.delete(stacksPath+"/w01", nil).want(200)
		reading.Wait()
		cancel()
		for _, p := range pairs {
			if p.got.err != nil || p.want.err != nil {
				t.Fatalf("%s: %v; upstream: %v", p.asked, p.got.err, p.want.err)
			}
			if p.got.code != p.want.code || !maps.EqualFunc(p.got.header, p.want.header, slices.Equal) ||
				!slices.EqualFunc(p.got.frames, p.want.frames, bytes.Equal) {
				t.Fatalf(
					"%s: got %d %v\n%.3000s\nupstream: %d %v\n%.3000s",
					p.asked,
					p.got.code,
					p.got.header,
					p.got.frames,
					p.want.code,
					p.want.header,
					p.want.frames,
				)
			}
			kinds[fmt.Sprint(p.got.code)]++
			if len(p.got.frames) > 1 {
				kinds["events"]++
			}
			if p.got.header.Get("Content-Encoding") == "gzip" {
				kinds["gzip"]++
			}
			if len(p.got.frames) > 0 && bytes.Contains(p.got.frames[0], []byte(`"code":410`)) {
				kinds["expired"]++
			}
		}
	}
	t.Log(kinds)
	for kind, least := range map[string]int{"200": 100, "400": 1, "events": 80, "gzip": 5, "protobuf": 5, "expired": 1} {
		if kinds[kind] < least {
			t.Errorf("the watches are too much alike: %v", kinds)
			break
		}
	}
}
