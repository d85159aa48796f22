package annextest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// OnWebhook selects the reviews that an API server sends to an admission webhook of the test, as On selects requests. The
// operation is create, update, delete or connect, several of them with commas between, or * for all. Delay, Hang and
// InternalError are the faults of webhooks; Webhook puts them in front of one.
func (f *Faults) OnWebhook(t Test, operation, resource string) *Selection {
	t.Helper()
	return f.selection(t, operation, resource, []string{"create", "update", "delete", "connect"}, true)
}

// Webhook returns a handler that meets the faults of OnWebhook in front of an admission webhook's handler. Requests without
// a review, such as conversions, go to the handler.
func (f *Faults) Webhook(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostReview))
		if err != nil {
			http.Error(w, "read the review: "+err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		t, ok := reviewed(body)
		if !ok {
			handler.ServeHTTP(w, r)
			return
		}
		f.mu.Lock()
		rules := f.rules[:len(f.rules):len(f.rules)]
		f.mu.Unlock()
		f.serve(rules, t, handler, w, r)
	})
}

// mostReview bounds a review, which has an object before and after a change.
const mostReview = 16 << 20

// reviewed returns the target of the request that a review is about.
func reviewed(body []byte) (target, bool) {
	var review admissionv1.AdmissionReview
	if json.Unmarshal(body, &review) != nil || review.Kind != "AdmissionReview" || review.Request == nil {
		return target{}, false
	}
	q := review.Request
	t := target{
		verb: strings.ToLower(string(q.Operation)), group: q.Resource.Group, resource: q.Resource.Resource, subresource: q.SubResource,
		namespace: q.Namespace, name: q.Name,
	}
	if t.resource == "namespaces" && t.group == "" {
		t.namespace = "" // a review has the name there, too
	}
	return t, true
}

// serve answers a review through the rules.
func (f *Faults) serve(rules []*rule, t target, handler http.Handler, w http.ResponseWriter, r *http.Request) {
	for i, rule := range rules {
		how, ok := rule.effect.(webhookEffect)
		switch {
		case !rule.webhook || !ok:
		case !rule.selects(t):
			f.pass(rule, t)
		case f.due(rule, t):
			how.serve(w, r, func() { f.serve(rules[i+1:], t, handler, w, r) })
			return
		}
	}
	handler.ServeHTTP(w, r)
}

// webhookEffect is an effect on a webhook.
type webhookEffect interface {
	serve(w http.ResponseWriter, r *http.Request, next func())
}

func (h hanging) serve(_ http.ResponseWriter, r *http.Request, _ func()) {
	select {
	case <-h.over:
	case <-r.Context().Done():
	}
}

func (d delayed) serve(_ http.ResponseWriter, r *http.Request, next func()) {
	if sleep(r, d.over, d.pause) == nil {
		next()
	}
}

// failing is an answer of a server and of a webhook.
type failing struct{ answered }

func (f failing) serve(w http.ResponseWriter, _ *http.Request, _ func()) {
	err := f.answered(target{})
	code := http.StatusInternalServerError
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	http.Error(w, err.Error(), code)
}
