package apiexts

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex"
)

// The headers that name the caller. They are trusted only with the secret that the server shares, and are those of
// Kubernetes' front proxies.
const (
	userHeader  = "X-Remote-User"
	uidHeader   = "X-Remote-Uid"
	groupHeader = "X-Remote-Group"
	extraPrefix = "X-Remote-Extra-"
)

// backend is a flag with the URL of a process of controllers.
type backend struct{ *url.URL }

// String implements pflag.Value.
func (b *backend) String() string {
	if b.URL == nil {
		return ""
	}
	return b.URL.String()
}

// Type implements pflag.Value.
func (b *backend) Type() string { return "string" }

// Set implements pflag.Value.
func (b *backend) Set(value string) error {
	u, err := url.Parse(value)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("want a URL such as http://127.0.0.1:6081")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return errors.New("want no user, path, query or fragment in it")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("callers are named over plain HTTP on this machine only: use https, or a loopback address")
	}
	b.URL = u
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// newProxy forwards requests to the process at u. It sets the caller's headers, and removes credentials and a
// client's own headers about callers.
func newProxy(u *url.URL, secret string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			for name := range r.Out.Header {
				if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "Impersonate-") {
					r.Out.Header.Del(name)
				}
			}
			name(r.Out.Header, annex.Caller(r.In.Context()))
			r.Out.Header.Set("Authorization", "Bearer "+secret)
		},
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode == http.StatusUnauthorized {
				return errors.New("it does not know this server: their secrets differ")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			klog.FromContext(r.Context()).Error(err, "The process of controllers does not answer", "url", u.String())
			answer(w, apierrors.NewServiceUnavailable("the process of controllers that serves this path does not answer"))
		},
	}
}

// name writes a caller to headers.
func name(h http.Header, caller user.Info) {
	if caller == nil {
		return
	}
	h.Set(userHeader, caller.GetName())
	if uid := caller.GetUID(); uid != "" {
		h.Set(uidHeader, uid)
	}
	for _, group := range caller.GetGroups() {
		h.Add(groupHeader, group)
	}
	for key, values := range caller.GetExtra() {
		for _, value := range values {
			h.Add(extraPrefix+url.PathEscape(key), value)
		}
	}
}

// behindProxy handles requests with the secret as the caller in their headers.
func behindProxy(next http.Handler, secret string) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + secret))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			answer(w, apierrors.NewUnauthorized("only the server may ask"))
			return
		}
		caller := &user.DefaultInfo{
			Name:   r.Header.Get(userHeader),
			UID:    r.Header.Get(uidHeader),
			Groups: r.Header.Values(groupHeader),
			Extra:  map[string][]string{},
		}
		for key, values := range r.Header {
			if escaped, is := strings.CutPrefix(key, extraPrefix); is {
				if key, err := url.PathUnescape(escaped); err == nil {
					caller.Extra[strings.ToLower(key)] = values
				}
			}
		}
		if caller.Name == "" {
			answer(w, apierrors.NewUnauthorized("the request names no caller"))
			return
		}
		next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), caller)))
	})
}

// serve serves on a loopback address until the context ends.
func serve(ctx context.Context, address string, handler http.Handler) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address of extensions: %w", err)
	}
	if !isLoopback(host) {
		return fmt.Errorf("address of extensions %s: it is no loopback address, and callers are named over plain HTTP", address)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve extensions: %w", err)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      time.Minute,
		IdleTimeout:       90 * time.Second,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve extensions: %w", err)
	}
	return nil
}

// secret returns the content of the secret file, and creates a missing file.
func (e *Extensions) secret() (string, error) {
	if e.secretFile == "" {
		return "", errors.New("the flag --apiext-secret-file is missing, by which the server and the process of controllers know each other")
	}
	if secret, err := readSecret(e.secretFile); !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	// The file is complete before it gets its name, and is never overwritten.
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	file, err := os.CreateTemp(dirOf(e.secretFile), ".secret-*")
	if err != nil {
		return "", fmt.Errorf("make secret of extensions: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(hex.EncodeToString(random) + "\n")
	if err = errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("make secret of extensions: %w", err)
	}
	if err := os.Link(file.Name(), e.secretFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make secret of extensions: %w", err)
	}
	return readSecret(e.secretFile)
}

func dirOf(path string) string {
	if i := strings.LastIndexByte(path, os.PathSeparator); i >= 0 {
		return path[:i+1]
	}
	return "."
}

func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read secret of extensions: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("secret of extensions: %s is open to other users (mode %04o): chmod 600 it", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret of extensions: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if len(secret) < 32 {
		return "", fmt.Errorf("secret of extensions: %s holds less than 32 characters: remove it, and another one is made", path)
	}
	return secret, nil
}
