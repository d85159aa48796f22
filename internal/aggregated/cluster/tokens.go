package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	webhooktoken "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/identity/credential"
)

// errNotReviewed means that a token could not be reviewed, in contrast to a review that rejects the token.
var errNotReviewed = errors.New("the token could not be reviewed")

// openTokens returns an authenticator that reviews tokens with the cluster. An error that matches errNotReviewed is
// independent of the token.
func (h *Cluster) openTokens() (authenticator.Token, error) {
	authenticatorfactory.RegisterMetrics()
	ttl := lifetime(h.config.Options.TokenCacheTTL)
	reviews, err := webhooktoken.NewFromInterface(
		h.authentication.AuthenticationV1(),
		nil,
		*reviewBackoff(),
		reviewTimeout,
		webhooktoken.AuthenticatorMetrics{
			RecordRequestTotal: func(ctx context.Context, code string) {
				if last, ok := ctx.Value(lastCode{}).(*string); ok {
					*last = code
				}
				authenticatorfactory.RecordRequestTotal(ctx, code)
			},
			RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
		},
	)
	if err != nil {
		return nil, fmt.Errorf("authentication by the cluster: %w", err)
	}
	direct := reviewErrors{reviews}
	return timeoutErrors{credential.Uncached(cache.New(direct, false, ttl, ttl), direct)}, nil
}

// lastCode is the context key under which the status of the last response is recorded. Upstream's errors do not
// indicate whether the cluster has responded.
type lastCode struct{}

// reviewErrors distinguishes rejected tokens from failed reviews.
type reviewErrors struct{ authenticator.Token }

func (t reviewErrors) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	last := ""
	response, ok, err := t.Token.AuthenticateToken(context.WithValue(ctx, lastCode{}, &last), token)
	if err != nil && !strings.HasPrefix(last, "2") {
		err = fmt.Errorf("%w: %w", errNotReviewed, err)
	}
	return response, ok, err
}

// timeoutErrors marks reviews that outlast their request as failed.
type timeoutErrors struct{ authenticator.Token }

func (t timeoutErrors) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := t.Token.AuthenticateToken(ctx, token)
	if err != nil && ctx.Err() != nil && !errors.Is(err, errNotReviewed) {
		err = fmt.Errorf("%w: %w", errNotReviewed, err)
	}
	return response, ok, err
}

// AuthenticationUnavailable returns nil if an error of AuthenticateRequest is about the caller. Otherwise it returns
// the reason why the cluster could not be asked.
func (h *Cluster) AuthenticationUnavailable(err error) error {
	if !errors.Is(err, errNotReviewed) {
		return nil
	}
	for _, c := range h.contacts {
		if c.need.GroupVersionResource != requirements.TokenReviews {
			continue
		}
		switch problem := c.last().(type) {
		case nil: // the cluster responds to other reviews
		case *forbiddenError:
			return h.forbiddenError([]requirements.Requirement{problem.need})
		default:
			return problem
		}
	}
	return errNotReviewed
}
