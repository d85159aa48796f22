package auth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// people is a webhook's answer to tokens that contain the name of their user.
func people(spec map[string]any) map[string]any {
	name, ok := strings.CutPrefix(fmt.Sprint(spec["token"]), "token-of-")
	if !ok {
		return map[string]any{"authenticated": false, "error": "no such token"}
	}
	return map[string]any{
		"authenticated": true,
		"audiences":     spec["audiences"],
		"user":          map[string]any{"username": name, "uid": "7", "groups": []string{"staff"}, "extra": map[string]any{"a": []string{"b"}}},
	}
}

func TestTokenWebhook(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta1"} {
		hook := authtest.NewWebhook(t, people)
		tokens, err := OpenTokenWebhook(config.TokenWebhookOptions{ConfigFile: hook.Kubeconfig, Version: version, CacheTTL: time.Hour}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			response, ok, err := tokens.AuthenticateToken(t.Context(), "token-of-jane")
			if err != nil || !ok || response.User.GetName() != "jane" || response.User.GetUID() != "7" || response.User.GetGroups()[0] != "staff" ||
				response.User.GetExtra()["a"][0] != "b" {
				t.Errorf("%s: %v, %t, %v", version, response, ok, err)
			}
			if response, ok, _ := tokens.AuthenticateToken(t.Context(), "wrong"); ok {
				t.Errorf("%s: a wrong token is that of %v", version, response.User)
			}
		}
		ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"here"})
		if response, ok, err := tokens.AuthenticateToken(
			ctx,
			"token-of-jane",
		); err != nil || !ok || len(response.Audiences) != 1 ||
			response.Audiences[0] != "here" {
			t.Errorf("%s, for an audience: %v, %t, %v", version, response, ok, err)
		}
		if n := hook.Asked.Load(); n > 5 { // jane once per audience; errors are not cached
			t.Errorf("%s: asked %d times", version, n)
		}
	}
}

func TestOpenTokenWebhook_invalidFile(t *testing.T) {
	t.Parallel()
	_, err := OpenTokenWebhook(config.TokenWebhookOptions{ConfigFile: "/missing/kubeconfig", Version: "v1"}, nil)
	if err == nil || !strings.Contains(err.Error(), "Options.TokenWebhook.ConfigFile /missing/kubeconfig") {
		t.Errorf("got %v", err)
	}
}

// stubborn is a webhook that does not respond until the context ends.
type stubborn struct{ asked, atOnce, most atomic.Int64 }

func (s *stubborn) AuthenticateToken(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
	s.asked.Add(1)
	n := s.atOnce.Add(1)
	defer s.atOnce.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	<-ctx.Done()
	return nil, false, &url.Error{Op: "Post", URL: "https://webhook", Err: ctx.Err()}
}

func TestTokenWebhook_hanging_isPaused(t *testing.T) {
	t.Parallel()
	hook := &stubborn{}
	tokens := newTokenWebhook(hook)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	const many = 1000
	var refused atomic.Int64
	for n := range many {
		all.Go(func() {
			if _, ok, err := tokens.AuthenticateToken(ctx, fmt.Sprint(n)); !ok && err != nil {
				refused.Add(1)
			}
		})
	}
	testwait.Until(t, "all slots are taken", func() bool { return hook.atOnce.Load() == webhookSlots })
	cancel()
	all.Wait()
	if refused.Load() != many {
		t.Errorf("%d of %d tokens were refused", refused.Load(), many)
	}
	if hook.asked.Load() > 2*webhookSlots || hook.most.Load() > webhookSlots {
		t.Errorf("asked %d times, %d at once", hook.asked.Load(), hook.most.Load())
	}
	asked := hook.asked.Load()
	if _, ok, err := tokens.AuthenticateToken(t.Context(), "next"); ok || !errors.Is(err, errWebhookAway) || hook.asked.Load() != asked {
		t.Errorf("right after that: %t, %v, asked %d times more", ok, err, hook.asked.Load()-asked)
	}
}

// The refusal of one token must not affect the next one.
func TestTokenWebhook_refusal_doesNotPause(t *testing.T) {
	t.Parallel()
	tokens := newTokenWebhook(authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		if token != "good" {
			return nil, false, errors.New("expired")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
	}))
	for range 3 {
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "bad"); ok || err == nil || errors.Is(err, errWebhookAway) {
			t.Errorf("a bad token: %t, %v", ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "good"); !ok || err != nil {
			t.Errorf("a good token: %t, %v", ok, err)
		}
	}
}
