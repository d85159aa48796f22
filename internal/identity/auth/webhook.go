package auth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/util/webhook"
	webhooktoken "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/credential"
)

const (
	// webhookTimeout bounds how long a request waits for a webhook, including retries.
	webhookTimeout = 10 * time.Second
	// webhookSlots is the maximum number of concurrent requests to a webhook. Further requests wait.
	webhookSlots = 32
	// webhookPause is the pause after a failure of the webhook, during which no requests are sent. More requests
	// would increase its load, and upstream's authenticator would log each failure.
	webhookPause = time.Second
)

// errWebhookAway is returned while the webhook is paused after a failure.
var errWebhookAway = errors.New("the webhook for tokens does not answer")

// OpenTokenWebhook returns an authenticator that asks a webhook. The options must be complete. It caches responses,
// also refusals, except in a context of credential.WithoutCaches. If the webhook does not respond, tokens are rejected after
// webhookTimeout.
func OpenTokenWebhook(o config.TokenWebhookOptions, audiences authenticator.Audiences) (authenticator.Token, error) {
	client, err := webhook.LoadKubeconfig(o.ConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("Options.TokenWebhook.ConfigFile %s: %w", o.ConfigFile, err)
	}
	client.Timeout = webhookTimeout
	hook, err := webhooktoken.New(client, o.Version, audiences, *webhooktoken.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("Options.TokenWebhook.ConfigFile %s: %w", o.ConfigFile, err)
	}
	ttl := max(o.CacheTTL, 0)
	asked := newTokenWebhook(hook)
	return credential.Uncached(cache.New(asked, false, ttl, ttl), asked), nil
}

// tokenWebhook bounds the requests to a webhook.
type tokenWebhook struct {
	hook   authenticator.Token
	slots  chan struct{}
	failed atomic.Int64 // time of the last failure, in nanoseconds
}

func newTokenWebhook(hook authenticator.Token) *tokenWebhook {
	return &tokenWebhook{hook: hook, slots: make(chan struct{}, webhookSlots)}
}

// AuthenticateToken implements authenticator.Token.
func (w *tokenWebhook) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return nil, false, credential.Unavailable(fmt.Errorf("%w: %w", errWebhookAway, ctx.Err()))
	}
	if time.Since(time.Unix(0, w.failed.Load())) < webhookPause {
		return nil, false, credential.Unavailable(errWebhookAway)
	}
	response, ok, err := w.hook.AuthenticateToken(ctx, token)
	if unanswered(err) || err != nil && ctx.Err() != nil {
		w.failed.Store(time.Now().UnixNano())
		err = credential.Unavailable(err)
	}
	return response, ok, err
}

// unanswered reports whether an error is a failure of the webhook, and not its refusal of a token.
func unanswered(err error) bool {
	failure, status := (*url.Error)(nil), apierrors.APIStatus(nil)
	return errors.As(err, &failure) || errors.As(err, &status)
}
