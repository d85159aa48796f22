package upstream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/fastpath"
)

// Bounds of patches, of which upstream has one: 10,000 operations of a JSON patch. What upstream's libraries do with a patch grows
// with the square of these numbers, and no deadline ends it.
const (
	// deepestMerge is how many objects and lists of a merge patch may be within each other: at each level the library reads the rest of
	// the patch and of the object anew. The deepest kinds of Kubernetes, definitions, have some 60 levels.
	deepestMerge = 128
	// mostListOperations is how many operations of a JSON patch may insert, remove or move elements of lists, not counting those that
	// append one: each copies the whole list.
	mostListOperations = 1_000
	// mostMerged is how many objects a strategic merge patch may have: elements of lists are looked for one by one.
	mostMerged = 10_000
)

// refuseCostlyPatches refuses patches that would take many times as long as their length makes one expect.
func refuseCostlyPatches(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
	if r.Method != http.MethodPatch || !info.IsResourceRequest {
		return r, nil
	}
	body, ok := r.Body.(fastpath.Body)
	if !ok {
		return r, nil
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch patch := body.Whole(); types.PatchType(strings.TrimSpace(media)) {
	case types.MergePatchType:
		if depth, _ := shapeOf(patch); depth > deepestMerge {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the merge patch has %d objects and lists within each other, and may have %d; "+
				"send a patch that is nested less deeply, or update the whole object", depth, deepestMerge))
		}
	case types.JSONPatchType:
		if n := listOperations(patch); n > mostListOperations {
			return nil, apierrors.NewRequestEntityTooLargeError(
				fmt.Sprintf("the allowed maximum of operations in a JSON patch on elements of lists is %d, got %d; "+
					"replace the whole list, or send several patches", mostListOperations, n),
			)
		}
	case types.StrategicMergePatchType:
		if _, objects := shapeOf(patch); objects > mostMerged {
			return nil, apierrors.NewRequestEntityTooLargeError(
				fmt.Sprintf("the allowed maximum of objects in a strategic merge patch is %d, got %d; "+
					"send a merge patch, or several patches", mostMerged, objects),
			)
		}
	}
	return r, nil
}

// shapeOf returns how many objects and lists of JSON are within each other at most, and how many objects there are. JSON that is not
// valid has any shape.
func shapeOf(data []byte) (deepest, objects int) {
	depth := 0
	for at := 0; at < len(data); at++ {
		switch data[at] {
		case '{':
			objects++
			depth++
			deepest = max(deepest, depth)
		case '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		case '"':
			for at++; at < len(data) && data[at] != '"'; at++ {
				if data[at] == '\\' {
					at++
				}
			}
		}
	}
	return deepest, objects
}

// listOperations returns how many operations of a JSON patch insert, remove or move an element of a list, 0 if it has so few
// operations that all of them may, or cannot be decoded.
func listOperations(patch []byte) int {
	if _, objects := shapeOf(patch); objects <= mostListOperations {
		return 0
	}
	var operations []struct{ Op, Path, From string }
	if err := json.Unmarshal(patch, &operations); err != nil {
		return 0 // which is for upstream's handlers to refuse
	}
	n := 0
	for _, o := range operations {
		switch o.Op {
		case "add", "copy", "remove":
			if isElement(o.Path) {
				n++
			}
		case "move":
			if isElement(o.Path) || isElement(o.From) {
				n++
			}
		}
	}
	return n
}

// isElement reports whether a JSON pointer may be that of an element of a list.
func isElement(pointer string) bool {
	_, err := strconv.Atoi(pointer[strings.LastIndexByte(pointer, '/')+1:])
	return err == nil
}
