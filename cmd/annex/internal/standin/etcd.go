package standin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/pflag"
)

// etcdVersion is the version that clients see.
const etcdVersion = "3.7.0"

// runEtcd is healthy until the parent ends or a signal arrives.
func runEtcd(p program) int {
	listen, err := etcdFlags(p)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return p.fail("etcd", err)
	}
	ctx, stop := lifetime()
	defer stop()
	if err := serveHealth(ctx, listen); err != nil {
		return p.fail("etcd", err)
	}
	return 0
}

// etcdFlags returns the addresses to listen on.
func etcdFlags(p program) ([]string, error) {
	flags := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	flags.SetOutput(p.stdout)
	flags.ParseErrorsAllowlist.UnknownFlags = true // none of them changes an answer of the kube-apiserver
	urls := flags.StringSlice("listen-client-urls", []string{"http://127.0.0.1:2379"}, "where to answer, as http URLs")
	version := flags.Bool("version", false, "print the version")
	if err := flags.Parse(p.args); err != nil {
		return nil, err
	}
	if *version {
		fmt.Fprintf(p.stdout, "etcd Version: %s\n", etcdVersion)
		return nil, pflag.ErrHelp
	}
	var listen []string
	for _, text := range *urls {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" || u.Host == "" {
			return nil, fmt.Errorf("--listen-client-urls %s: want http://HOST:PORT; this etcd has no TLS", text)
		}
		listen = append(listen, u.Host)
	}
	return listen, nil
}

func serveHealth(ctx context.Context, addresses []string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{"health":"true","reason":""}`) })
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "{\"etcdserver\":%q,\"etcdcluster\":%q}\n", etcdVersion, etcdVersion)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer server.Close()
	var listeners []net.Listener
	for _, address := range addresses {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("--listen-client-urls: %w: name an address that no program listens on", err)
		}
		defer listener.Close() // the server knows it only once Serve runs
		listeners = append(listeners, listener)
	}
	failed := make(chan error, len(listeners))
	for _, listener := range listeners {
		go func() { failed <- server.Serve(listener) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}
