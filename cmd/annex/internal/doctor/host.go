package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// maxAnswer bounds the body that is read of one response: the OpenAPI document of a large group has some megabytes.
const maxAnswer = 64 << 20

// host is the cluster, with the permissions of the kubeconfig's user. It must not be used concurrently.
type host struct {
	core     kubernetes.Interface
	client   *http.Client
	base     *url.URL
	patience time.Duration
	// ahead is how far the cluster's clock is ahead of this machine's. Responses have a precision of seconds.
	ahead time.Duration

	groups      []apidiscovery.APIGroupDiscovery
	definitions []customResource
}

func connect(ctx context.Context, options Options) (*host, error) {
	config, err := readConfig(options)
	if err != nil {
		return nil, err
	}
	h, err := newHost(config, options.Patience)
	if err != nil {
		return nil, err
	}
	return h, h.greet(ctx)
}

func readConfig(options Options) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, rules.WarnIfAllMissing = options.Kubeconfig, false
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: options.Context}).
		ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("no kubeconfig at %s: set --kubeconfig or KUBECONFIG", rules.GetDefaultFilename())
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("kubeconfig: %w", err)
	case err != nil:
		return nil, fmt.Errorf("kubeconfig %s: %w", rules.GetDefaultFilename(), err)
	}
	return config, nil
}

func newHost(config *rest.Config, patience time.Duration) (*host, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.UserAgent, config.ContentType = -1, "annex-doctor", "application/json"
	config.WarningHandler = rest.NoWarnings{} // about deprecated versions: the server is under examination, not the client
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	core, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &host{core: core, client: client, base: base, patience: patience}, nil
}

// greet checks that the cluster answers the user, and reads its clock.
func (h *host) greet(ctx context.Context) error {
	began := time.Now()
	a, err := h.get(ctx, "/version")
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op
		}
		return fmt.Errorf("the cluster at %s does not answer: %w", h.base, err)
	}
	if a.status == http.StatusUnauthorized {
		return fmt.Errorf("the cluster at %s does not accept the credentials of the kubeconfig (401): log in again, or use another "+
			"--context", h.base)
	}
	if date, err := http.ParseTime(a.header.Get("Date")); err == nil {
		h.ahead = date.Add(time.Second / 2).Sub(began.Add(a.took / 2))
		if h.ahead < 2*time.Second && h.ahead > -2*time.Second { // the precision of the response header
			h.ahead = 0
		}
	}
	return nil
}

func (h *host) now() time.Time { return time.Now().Add(h.ahead) }

// clock describes the cluster's clock, if it differs from this machine's.
func (h *host) clock() string {
	if h.ahead == 0 {
		return ""
	}
	direction, by := "ahead of", h.ahead
	if by < 0 {
		direction, by = "behind", -by
	}
	return fmt.Sprintf("the clock of the API server is %s %s this machine's; doctor uses the API server's", by.Round(time.Second), direction)
}

// answer is an HTTP response with its complete body.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// get sends a GET to the cluster for a path, which may have a query.
func (h *host) get(ctx context.Context, path string, accept ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	began := time.Now()
	response, err := h.open(ctx, path, accept...)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, err
	}
	return answer{response.StatusCode, response.Header, body, time.Since(began)}, nil
}

// open sends a GET to the cluster for a path. The caller closes the body.
func (h *host) open(ctx context.Context, path string, accept ...string) (*http.Response, error) {
	at := *h.base // the URL may have a path
	path, at.RawQuery, _ = strings.Cut(path, "?")
	at.Path = strings.TrimSuffix(at.Path, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	for _, a := range accept {
		request.Header.Set("Accept", a)
	}
	response, err := h.client.Do(request)
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err // without the URL, which the error would repeat
	}
	return response, err
}

// read decodes the cluster's response for a path into a value.
func (h *host) read(ctx context.Context, path string, into any, accept ...string) error {
	a, err := h.get(ctx, path, accept...)
	if err != nil {
		return err
	}
	if err := a.failure(); err != nil {
		return err
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// failure returns the error of an unsuccessful response, as an error of package k8s.io/apimachinery/pkg/api/errors.
func (a answer) failure() error {
	if a.status/100 == 2 {
		return nil
	}
	status := metav1.Status{Status: metav1.StatusFailure, Code: int32(a.status), Reason: reasonOf(a.status)}
	var said metav1.Status
	if json.Unmarshal(a.body, &said) == nil && said.Kind == "Status" {
		status = said
	} else {
		text := bytes.TrimSpace(a.body)
		status.Message = fmt.Sprintf("%d %s", a.status, text[:min(len(text), 500)])
	}
	return &apierrors.StatusError{ErrStatus: status}
}

func reasonOf(status int) metav1.StatusReason {
	switch status {
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	}
	return metav1.StatusReasonUnknown
}

// mayNot returns the finding for a check that the caller has no permission for, or that the cluster did not answer.
func mayNot(what string, err error) Finding {
	if apierrors.IsForbidden(err) {
		return unseen("the user of the kubeconfig may not " + what)
	}
	return unseen(fmt.Sprintf("cannot %s: %v", what, err))
}

// isLoopback reports whether the cluster is on this machine and shares its loopback addresses.
func (h *host) isLoopback() bool { return isLoopback(h.base.Hostname()) }

func isLoopback(name string) bool {
	if name == "localhost" {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}
