package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/storage/mvcc"
)

// coreOptions returns the options of the mvcc core above a storage's journal.
func coreOptions(o *config.Options) mvcc.Options {
	return mvcc.Options{History: history(o), ObjectCacheBytes: o.ObjectCacheSize, ValueBytes: o.ValueCacheSize}
}

func history(o *config.Options) mvcc.History {
	return mvcc.History{MinAge: o.HistoryAge, MinRevisions: o.HistoryRevisions, MaxBytes: o.HistoryBytes}
}

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
		free := ""
		if field == secureField { // for the other fields, port 0 means no listener
			free = "; 0 is a free one"
		}
		return nil, fmt.Errorf("%s: port %s of %s is in use by another program: "+
			"end that, or give %[1]s another port%[4]s", field, port, host, free)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: port %s needs privileges; choose one above 1023", field, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: bind address %s is none of this machine's; 0.0.0.0 and :: are all of them", field, host)
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

func (s *Server) listen() error {
	var err error
	if s.secure, err = listen(secureField, s.plan.Options.Listen); err != nil {
		return err
	}
	if s.secure != nil {
		s.onClose(closeListener(s.secure))
	}
	if s.insecure, err = listen("Options.ListenInsecure", s.plan.Options.ListenInsecure); err != nil {
		return err
	}
	if s.insecure != nil {
		s.onClose(closeListener(s.insecure))
	}
	if s.unix, err = listenUnix(s.plan.Options.ListenUnix); err != nil {
		return err
	}
	if s.unix != nil {
		s.onClose(closeListener(s.unix))
	}
	return nil
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

// url returns the HTTPS URL of a listener for clients on this machine.
func (s *Server) url(l net.Listener) string {
	at := l.Addr().(*net.TCPAddr)
	return certs.ServerURL(at.IP, at.Port)
}

// URL returns the server's HTTPS URL for clients on this machine. A server that does not listen may have an
// external host name, of another program's listener, which URL returns instead; without a host name it returns an
// empty string.
func (s *Server) URL() string {
	switch {
	case s.secure != nil:
		return s.url(s.secure)
	case s.plan.Options.Serving.ExternalHostname != "":
		return "https://" + s.address()
	}
	return ""
}

// InsecureURL returns the server's plain HTTP URL for clients on this machine; empty if it does not listen.
func (s *Server) InsecureURL() string {
	if s.insecure == nil {
		return ""
	}
	return "http" + strings.TrimPrefix(s.url(s.insecure), "https")
}

// TLSConfig returns the TLS configuration for another program's listener that serves Handler.
func (s *Server) TLSConfig() (*tls.Config, error) {
	return s.serving.Config(s.mode.serving(), s.mode.clientCA())
}

// hosts returns the hosts that the generated certificate covers, besides this machine's.
func (s *Server) hosts() []string {
	all := []string{bindIP(&s.plan.Options).String()}
	if name := s.plan.Options.Serving.ExternalHostname; name != "" {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		all = append(all, name)
	}
	return all
}

// Socket returns the absolute path of the Unix socket; empty if the server has none.
func (s *Server) Socket() string {
	if s.unix == nil {
		return ""
	}
	if path, err := filepath.Abs(s.plan.Options.ListenUnix); err == nil {
		return path
	}
	return s.plan.Options.ListenUnix
}

// address returns the address for clients in discovery.
func (s *Server) address() string {
	own := s.ownAddress()
	name := s.plan.Options.Serving.ExternalHostname
	if name == "" {
		return own
	}
	if _, _, err := net.SplitHostPort(name); err == nil {
		return name
	}
	_, port, _ := net.SplitHostPort(own) // own always has a port
	return net.JoinHostPort(name, port)
}

func (s *Server) ownAddress() string {
	for _, l := range []net.Listener{s.secure, s.insecure} {
		if l != nil {
			return strings.TrimPrefix(s.url(l), "https://")
		}
	}
	return "localhost:443"
}
