package convert

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/model/define"
)

const cannotConvert = "cannot be converted to version "

// unconvertible is the error of an object that its version can say but the hub
// cannot: a bad request.
func unconvertible(hub *define.Version, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s%q: %v", cannotConvert, hub.GroupVersion.Version, err))
}

// BadRequest returns the error of an update as a bad request if it is about an
// object that could not be converted to the hub. Upstream's field manager keeps
// only the text of an error, hence the look at it.
func BadRequest(err error) error {
	if err == nil || !strings.Contains(err.Error(), cannotConvert) || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}
