// Package shell implements the subresources of the project's own test servers that run programs for objects. The
// programs run beside the server.
package shell

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"

	"github.com/annexapi/annex/stream"
)

// Exec runs a command.
func Exec[T any](ctx context.Context, r *stream.ExecRequest[T], s stream.Streams) error {
	return s.Run(exec.CommandContext(ctx, r.Options.Command[0], r.Options.Command[1:]...))
}

// Attach returns its input.
func Attach[T any](_ context.Context, r *stream.AttachRequest[T], s stream.Streams) error {
	fmt.Fprintf(s.Stderr, "attached to %s\n", r.Options.Container)
	_, err := io.Copy(s.Stdout, s.Stdin)
	return err
}

// Log returns ten lines.
func Log[T any](_ context.Context, r *stream.LogRequest[T]) (io.ReadCloser, error) {
	var lines strings.Builder
	for i := range 10 {
		fmt.Fprintf(&lines, "%s of %s, line %d\n", r.Options.Container, r.Name, i)
	}
	return io.NopCloser(strings.NewReader(lines.String())), nil
}

// Dial connects to a port of this machine.
func Dial[T any](ctx context.Context, _ *stream.PortForwardRequest[T], port int32) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
}
