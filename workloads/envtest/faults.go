package envtest

import (
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/annexapi/annex/annextest"
)

// FaultyWebhooks returns a webhook server for a manager's options. Its admission webhooks meet the faults that are selected
// by OnWebhook, for example of a webhook that is slow. Webhooks that were registered before do not.
//
//	faults.OnWebhook(t, "create", "flunders").First(1).Hang()
//	ctrl.Options{WebhookServer: envtest.FaultyWebhooks(webhook.NewServer(options), &faults)}
func FaultyWebhooks(server webhook.Server, faults *annextest.Faults) webhook.Server {
	return faultyServer{server, faults}
}

type faultyServer struct {
	webhook.Server
	faults *annextest.Faults
}

// Register marks the given webhook as being served at the given path.
func (s faultyServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, s.faults.Webhook(hook))
}
