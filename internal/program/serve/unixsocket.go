package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
)

// unixListener is a Unix socket. Its clients have no addresses, so it numbers them to make them distinguishable.
type unixListener struct {
	*net.UnixListener
	path     string
	accepted atomic.Int64
}

// maxSocketPath is the longest path of a socket. Some systems limit a path to 104 bytes, including its terminator
// and the temporary directory in which the socket is created.
const maxSocketPath = 90

// listenUnix opens a Unix socket that only the process's user can ever access; nil for an empty path. It replaces a
// socket on which no server listens any more.
func listenUnix(path string) (net.Listener, error) {
	if path == "" {
		return nil, nil
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf(
			"Options.ListenUnix: the path has %d bytes, more than the maximum of %d for sockets: %s",
			len(path),
			maxSocketPath,
			path,
		)
	}
	if err := checkUnused(path); err != nil {
		return nil, fmt.Errorf("Options.ListenUnix: %w", err)
	}
	// Create the socket where no other user can reach it, then move it.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".")
	if err != nil {
		return nil, fmt.Errorf("Options.ListenUnix: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("Options.ListenUnix: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("Options.ListenUnix: %w", err), l.Close())
	}
	return &unixListener{UnixListener: l, path: path}, nil
}

// checkUnused rejects a path with another file, or on which another server listens.
func checkUnused(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists, but is not a socket", path)
	}
	conn, err := net.Dial("unix", path)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err == nil {
		err = conn.Close()
	}
	return errors.Join(fmt.Errorf("%s is in use by another program", path), err)
}

// Accept implements net.Listener.
func (l *unixListener) Accept() (net.Conn, error) {
	conn, err := l.UnixListener.Accept()
	if err != nil {
		return nil, err
	}
	return numbered{conn, l.accepted.Add(1)}, nil
}

// Addr implements net.Listener.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener. It removes the socket, unless another server has replaced it.
func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if err == nil && checkUnused(l.path) == nil {
		if err = os.Remove(l.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// numbered is the connection of a client of a Unix socket.
type numbered struct {
	net.Conn
	number int64
}

func (c numbered) RemoteAddr() net.Addr { return numberedAddr(c.number) }

// NetConn returns the underlying connection, by which sessions check whether the client is still connected.
func (c numbered) NetConn() net.Conn { return c.Conn }

type numberedAddr int64

func (numberedAddr) Network() string  { return "unix" }
func (a numberedAddr) String() string { return "unix:" + strconv.FormatInt(int64(a), 10) }
