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

// Limits of patches, in addition to upstream's single limit of 10,000 operations per JSON patch. The time that
// upstream's libraries need grows with the square of these numbers, and no deadline ends it.
const (
	// deepestMerge is the nesting limit for objects and lists of a merge patch: at each level the library parses the
	// rest of the patch and of the object again. The deepest kinds of Kubernetes, CustomResourceDefinitions, have
	// some 60 levels.
	deepestMerge = 128
	// mostListOperations is the limit for operations of a JSON patch that insert, remove or move list elements,
	// without operations that append one: each copies the whole list.
	mostListOperations = 1_000
	// mostMerged is the limit for objects in a strategic merge patch: list elements are searched one by one.
	mostMerged = 10_000
)

// refuseCostlyPatches refuses patches that would take far longer than their length suggests.
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
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the merge patch has %d nested objects and lists, more than the maximum of "+
				"%d; send a less deeply nested patch, or update the whole object", depth, deepestMerge))
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

// shapeOf returns the depth of nesting of objects and lists in JSON, and the number of objects. The result for
// invalid JSON is arbitrary.
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

// listOperations returns the number of operations of a JSON patch that insert, remove or move a list element. It
// returns 0 if the patch cannot be decoded, or has so few operations that their total is within the limit.
func listOperations(patch []byte) int {
	if _, objects := shapeOf(patch); objects <= mostListOperations {
		return 0
	}
	var operations []struct{ Op, Path, From string }
	if err := json.Unmarshal(patch, &operations); err != nil {
		return 0 // upstream's handlers refuse it
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

// isElement reports whether a JSON pointer may point to a list element.
func isElement(pointer string) bool {
	_, err := strconv.Atoi(pointer[strings.LastIndexByte(pointer, '/')+1:])
	return err == nil
}
