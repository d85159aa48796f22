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

// Request is what every function of this package gets: who asks to be connected with which object.
type Request[T any] struct {
	// Resource is the resource that the client speaks of, in its version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Object is the object as it was when the request came. It is the function's own.
	Object *T
	// User is who asks.
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

// containers are the parts of an object that clients choose from, as the containers of a pod.
type containers[T any] func(obj *T) []string

// choose returns the container of a request, in which none means the first. Without a function, all
// names are taken as they are.
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

// idleDefault is that of a kubelet.
const idleDefault = 4 * time.Hour

// limits are those of sessions, as builders set them.
type limits struct{ idle, total time.Duration }

func (l limits) effective() streams.Limits {
	if l.idle == 0 {
		l.idle = idleDefault
	}
	return streams.Limits{Idle: l.idle, Total: l.total}
}

// checked is an error before anything has been upgraded, which is the answer to the request.
func checked(ctx context.Context, err error) error {
	if err != nil {
		outcome.Set(ctx, outcome.Refused)
	}
	return err
}

// upgradeable are the methods of sessions: a WebSocket begins with a GET.
var upgradeable = []string{http.MethodGet, http.MethodPost}
