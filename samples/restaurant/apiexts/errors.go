package apiexts

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/labstack/echo/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// answerEcho answers with an error of an endpoint. It passes an error of the API on unchanged, so that a caller who
// lacks a permission learns which.
func answerEcho(c *echo.Context, err error) {
	w := c.Response()
	if sent, ok := w.(*echo.Response); ok && sent.Committed {
		return
	}
	answer(w, err)
}

func answer(w http.ResponseWriter, err error) {
	status := apierrors.APIStatus(nil)
	var code echo.HTTPStatusCoder
	switch {
	case errors.As(err, &status):
	case errors.As(err, &code):
		status = apierrors.NewGenericServerResponse(code.StatusCode(), "", schema.GroupResource{}, "", err.Error(), 0, false)
	default:
		klog.Background().Error(err, "An endpoint failed")
		status = apierrors.NewInternalError(errors.New("the endpoint failed"))
	}
	s := status.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(append(body, '\n'))
}
