package stream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/base/outcome"
	"github.com/annexapi/annex/internal/server/streams"
)

// Request is the part of a request that all functions of this package get: the caller, and the object to connect to.
type Request[T any] struct {
	// Resource is the requested resource, in the version of the request.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Object is the object as read when the request came. The function owns it.
	Object *T
	// User is the caller.
	User user.Info
}

// object is a pointer to T that is a Kubernetes object.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

func requestOf[T, O any](r *annex.ConnectRequest[T, O]) Request[T] {
	return Request[T]{Resource: r.Resource, Namespace: r.Namespace, Name: r.Name, Object: r.Parent, User: r.User}
}

// containers lists the named parts of an object that clients choose from, as the containers of a pod.
type containers[T any] func(obj *T) []string

// choose returns the container of a request; an empty name selects the first. Without a function, it accepts any
// name.
func (c containers[T]) choose(r *Request[T], asked string) (string, error) {
	if c == nil {
		return asked, nil
	}
	names := c(r.Object)
	switch {
	case len(names) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("%s %s has no containers", r.Resource.Resource, r.Name))
	case asked == "":
		return names[0], nil
	case !slices.Contains(names, asked):
		return "", apierrors.NewBadRequest(
			fmt.Sprintf("container %s is not valid for %s %s, choose one of: %s", asked, r.Resource.Resource, r.Name, strings.Join(names, ", ")),
		)
	}
	return asked, nil
}

// idleDefault is the idle timeout of a kubelet.
const idleDefault = 4 * time.Hour

// limits are the limits of a session, as builders set them.
type limits struct{ idle, total time.Duration }

func (l limits) effective() streams.Limits {
	if l.idle == 0 {
		l.idle = idleDefault
	}
	return streams.Limits{Idle: l.idle, Total: l.total}
}

// checked marks a request as refused before its upgrade, and returns err, the answer to the request.
func checked(ctx context.Context, err error) error {
	if err != nil {
		outcome.Set(ctx, outcome.Refused)
	}
	return err
}

// upgradeable are the methods of a session; a WebSocket begins with a GET.
var upgradeable = []string{http.MethodGet, http.MethodPost}
