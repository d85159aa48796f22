package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

// served runs a server with the widget w while use runs.
func served(use func(config *rest.Config) error, subresources ...annex.SubresourceOf[v1.Widget]) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	instance, err := annex.New(ctx, shop(widgets(subresources...)), annex.Options{Storage: memory.Storage(), Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready
	config, err := instance.ClientConfig()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	response, err := client.Post(
		config.Host+widgetsPath,
		"application/json",
		strings.NewReader(`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w"}}`),
	)
	if err != nil {
		return err
	}
	response.Body.Close()
	err = use(config)
	client.CloseIdleConnections()
	cancel()
	return errors.Join(err, <-ended)
}

// A command that counts the words of its input, and a client that runs it.
func ExampleExec() {
	count := stream.Exec("exec", func(_ context.Context, r *stream.ExecRequest[v1.Widget], s stream.Streams) error {
		text, err := io.ReadAll(s.Stdin)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.Stdout, "%s in %s: %d\n", r.Options.Command[0], r.Name, len(strings.Fields(string(text))))
		return stream.ExitError{Code: 7}
	})
	err := served(func(config *rest.Config) error {
		client, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, config.Host+widgetsPath+"/w/exec?command=words&stdin=true")
		if err != nil {
			return err
		}
		var out bytes.Buffer
		err = client.StreamWithContext(
			context.Background(),
			remotecommand.StreamOptions{Stdin: strings.NewReader("a b c"), Stdout: &out, Stderr: io.Discard},
		)
		fmt.Print(out.String())
		var ended exec.CodeExitError
		if errors.As(err, &ended) {
			fmt.Println("exit code", ended.Code)
			return nil
		}
		return err
	}, count)
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// words in w: 3
	// exit code 7
}

// A website of each widget, and a client that reads it through the server.
func ExampleProxy() {
	website := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of a widget, by %q", r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer website.Close()
	at, err := url.Parse(website.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	proxy := stream.Proxy("proxy", func(_ context.Context, _ *stream.ProxyRequest[v1.Widget]) (*stream.Backend, error) {
		return &stream.Backend{URL: at, BearerToken: "the server's own"}, nil
	})
	err = served(func(config *rest.Config) error {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		response, err := client.Get(config.Host + widgetsPath + "/w/proxy/menu")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		fmt.Println(string(page))
		return err
	}, proxy)
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// /menu of a widget, by "Bearer the server's own"
}
