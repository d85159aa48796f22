package serve

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/certs"
)

// secureField is the option with the HTTPS address.
const secureField = "Options.Listen"

// listen opens an address; nil if it is empty. field names the option in errors.
func listen(field, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	host, port, _ := net.SplitHostPort(address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		free := freePort(host, port)
		if free == 0 && field != secureField { // for the other fields, port 0 means no listener
			return nil, fmt.Errorf("%s: port %s of %s is in use by %s: stop it, or set %[1]s to another port", field, port, host, holder(port))
		}
		return nil, fmt.Errorf("%s: port %s of %s is in use by %s: stop it, or set %[1]s to a free port, such as %[5]d", field, port, host,
			holder(port), free)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: port %s requires privileges: use a port above 1023", field, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: bind address %s does not belong to this machine: use 0.0.0.0 or :: for all its addresses", field, host)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return l, nil
}

// closeListener returns a function that closes a listener, which an HTTP server may have closed already.
func closeListener(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// listeners are the open addresses of a server. A listener is nil if its option is empty.
type listeners struct {
	secure, insecure, unix net.Listener
	// external is the host name of another program's listener, perhaps with a port; empty if there is none.
	external string
	// socket is the path of the Unix socket.
	socket string
}

func openListeners(o *config.Options, closing *closers) (listeners, error) {
	open := func(l net.Listener, err error) (net.Listener, error) {
		if err == nil && l != nil {
			closing.add(closeListener(l))
		}
		return l, err
	}
	secure, err := open(listen(secureField, o.Listen))
	if err != nil {
		return listeners{}, err
	}
	insecure, err := open(listen("Options.ListenInsecure", o.ListenInsecure))
	if err != nil {
		return listeners{}, err
	}
	unix, err := open(listenUnix(o.ListenUnix))
	if err != nil {
		return listeners{}, err
	}
	return listeners{secure, insecure, unix, o.Serving.ExternalHostname, o.ListenUnix}, nil
}

// bindIP returns the IP address of the HTTPS listener, or else of the plain HTTP listener.
func bindIP(o *config.Options) net.IP {
	for _, address := range []string{o.Listen, o.ListenInsecure} {
		if host, _, err := net.SplitHostPort(address); err == nil {
			if host == "" {
				return net.IPv6unspecified
			}
			return net.ParseIP(host)
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

// localURL returns the HTTPS URL of a listener for clients on this machine.
func localURL(l net.Listener) string {
	at := l.Addr().(*net.TCPAddr)
	return certs.ServerURL(at.IP, at.Port)
}

// url returns the HTTPS URL for clients on this machine. Without a listener it returns the URL of another program's
// listener, and an empty string if there is none.
func (l listeners) url() string {
	switch {
	case l.secure != nil:
		return localURL(l.secure)
	case l.external != "":
		return "https://" + l.address()
	}
	return ""
}

// insecureURL returns the plain HTTP URL for clients on this machine; empty without a listener.
func (l listeners) insecureURL() string {
	if l.insecure == nil {
		return ""
	}
	return "http" + strings.TrimPrefix(localURL(l.insecure), "https")
}

// socketPath returns the absolute path of the Unix socket; empty if there is none.
func (l listeners) socketPath() string {
	if l.unix == nil {
		return ""
	}
	if path, err := filepath.Abs(l.socket); err == nil {
		return path
	}
	return l.socket
}

// address returns the address for clients in discovery.
func (l listeners) address() string {
	own := l.ownAddress()
	if l.external == "" {
		return own
	}
	if _, _, err := net.SplitHostPort(l.external); err == nil {
		return l.external
	}
	_, port, _ := net.SplitHostPort(own) // own always has a port
	return net.JoinHostPort(l.external, port)
}

func (l listeners) ownAddress() string {
	for _, one := range []net.Listener{l.secure, l.insecure} {
		if one != nil {
			return strings.TrimPrefix(localURL(one), "https://")
		}
	}
	return "localhost:443"
}
