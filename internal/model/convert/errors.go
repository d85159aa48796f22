package convert

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/model/define"
)

const cannotConvert = "cannot be converted to version "

// unconvertible returns a bad request for an object that its version can express and the hub cannot.
func unconvertible(hub *define.Version, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s%q: %v", cannotConvert, hub.GroupVersion.Version, err))
}

// BadRequest turns the error of an update into a bad request if an object could not be converted to the hub.
// Upstream's field manager keeps only the text of an error, so the text is inspected.
func BadRequest(err error) error {
	if err == nil || !strings.Contains(err.Error(), cannotConvert) || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}
