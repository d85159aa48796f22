package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

func (p *plugin) newPortForward() *cobra.Command {
	var addresses []string
	cmd := &cobra.Command{
		Use:   "port-forward KIND/NAME [LOCAL:]REMOTE...",
		Short: "Forward ports of this machine to an object",
		Long: `Listens on ports of this machine, and forwards connections to ports of an object, until interrupted. LOCAL defaults to
REMOTE. If LOCAL is empty, as in :80, the verb chooses a free port and prints it.`,
		Example: `  ` + p.called() + ` port-forward runner/x 8080:80
  ` + p.called() + ` port-forward runner/x :80 --address 127.0.0.1`,
		ValidArgsFunction: p.completeObjects(hasRole(rolePortForward)),
		RunE: func(cmd *cobra.Command, words []string) error {
			n := 1 // KIND/NAME
			if len(words) > 0 && !strings.Contains(words[0], "/") && len(words) > 1 && !isPort(words[1]) {
				n = 2 // KIND NAME
			}
			n = min(n, len(words))
			o, err := p.object(words[:n], string(rolePortForward), hasRole(rolePortForward))
			if err != nil {
				return err
			}
			if len(words) == n {
				return misuse("no ports: use port-forward KIND/NAME [LOCAL:]REMOTE")
			}
			for _, word := range words[n:] {
				if !isPort(word) {
					return misuse("invalid port %q: use a port such as 80, 8080:80 or :80", word)
				}
			}
			return p.forward(cmd.Context(), o, addresses, words[n:])
		},
	}
	cmd.Flags().
		StringSliceVar(&addresses, "address", []string{"localhost"}, "addresses to listen on; localhost selects 127.0.0.1 and ::1, and at "+
			"least one of them must work")
	return cmd
}

func isPort(word string) bool {
	local, remote, both := strings.Cut(word, ":")
	if !both {
		local, remote = "", local
	}
	in := func(text string) bool {
		n, err := strconv.ParseUint(text, 10, 16)
		return err == nil && n > 0
	}
	return in(remote) && (local == "" || local == "0" || in(local))
}

func (p *plugin) forward(ctx context.Context, o object, addresses, ports []string) error {
	if err := p.isThere(ctx, o); err != nil {
		return err
	}
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := p.server.client()
	if err != nil {
		return err
	}
	at := client.Post().AbsPath(o.path(o.with(rolePortForward).name)...).URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return err
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, config)
	if err != nil {
		return err
	}
	dialer := portforward.NewFallbackDialerForStreaming(
		tunnel,
		spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at),
		func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		},
	)
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, addresses, ports, nil, p.Out, p.ErrOut)
	if err != nil {
		return usageError{err}
	}
	switch err := forwarder.ForwardPorts(); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, portforward.ErrLostConnectionToPod):
		return fmt.Errorf("lost the connection to %s: it ended, or a port refused a connection", o)
	default:
		return explain(err, o, at)
	}
}
