package reviews

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// caller returns the caller of the request. Every request behind authentication has one.
func caller(ctx context.Context) (user.Info, error) {
	if info, ok := request.UserFrom(ctx); ok {
		return info, nil
	}
	return nil, apierrors.NewBadRequest("no user present on request")
}

func checkToken(_ context.Context, r *authenticationv1.TokenReview) error {
	if r.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	return nil
}

// token reviews a bearer token as if it came with a request.
func (c Config) token(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if len(r.Spec.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, r.Spec.Audiences)
	}
	asked := (&http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{},
		Header: http.Header{"Authorization": {"Bearer " + r.Spec.Token}},
	}).WithContext(ctx)
	response, ok, err := c.Authenticator.AuthenticateRequest(asked)
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		r.Status.Error = err.Error()
	}
	if response == nil || response.User == nil {
		return r, nil
	}
	if wanted := authenticator.Audiences(r.Spec.Audiences); len(wanted) > 0 && len(wanted.Intersect(response.Audiences)) == 0 {
		return nil, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	r.Status.User = userInfo(response.User)
	r.Status.Audiences = response.Audiences
	return r, nil
}

// self returns the caller, after impersonation.
func self(ctx context.Context, _ *authenticationv1.SelfSubjectReview) (*authenticationv1.SelfSubjectReview, error) {
	info, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(info)},
	}, nil
}

func userInfo(info user.Info) authenticationv1.UserInfo {
	extra := map[string]authenticationv1.ExtraValue{}
	for key, values := range info.GetExtra() {
		extra[key] = values
	}
	return authenticationv1.UserInfo{Username: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Extra: extra}
}
