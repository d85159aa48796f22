package audit

import (
	"bytes"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/config"
)

// webhookSenders is the maximum number of concurrent requests. Each batch stays in memory until the webhook has
// responded, so a hanging webhook must not accumulate requests.
const webhookSenders = 4

// sender sends lists of events to a webhook.
type sender struct{ *webhook.GenericWebhook }

func newWebhook(o config.AuditWebhookOptions) (sender, error) {
	client, err := webhook.LoadKubeconfig(o.ConfigFile, nil)
	if err != nil {
		return sender{}, err
	}
	w, err := webhook.NewGenericWebhook(audit.Scheme, audit.Codecs, client, []schema.GroupVersion{auditv1.SchemeGroupVersion},
		webhook.DefaultRetryBackoffWithInitialDelay(o.InitialBackoff))
	if err != nil {
		return sender{}, err
	}
	// Retry after any error, whatever the response.
	w.ShouldRetry = func(err error) bool { return err != nil }
	return sender{w}, nil
}

// send returns nil when the webhook has accepted the events. It ends with ctx.
func (s sender) send(ctx context.Context, events [][]byte) error {
	list := slices.Concat(
		[]byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`),
		bytes.Join(events, []byte(",")),
		[]byte("]}"),
	)
	return s.WithExponentialBackoff(ctx, func() rest.Result {
		return s.RestClient.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(list).Do(ctx)
	}).Error()
}
