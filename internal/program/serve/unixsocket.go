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

// unixListener is a Unix socket. Its clients have no addresses of their own, and get numbers, by
// which they can be told apart.
type unixListener struct {
	*net.UnixListener
	path     string
	accepted atomic.Int64
}

// maxSocketPath is less than the 104 bytes that some systems have for a path with its end, by the
// name of the directory that a socket is made in.
const maxSocketPath = 90

// listenUnix opens a Unix socket that is for the process's user only from its first moment on; nil
// without a path. One that no server listens on any more is replaced.
func listenUnix(path string) (net.Listener, error) {
	if path == "" {
		return nil, nil
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf(
			"Options.ListenUnix: the path has %d bytes, and those of sockets have %d at most: %s",
			len(path),
			maxSocketPath,
			path,
		)
	}
	if err := checkUnused(path); err != nil {
		return nil, fmt.Errorf("Options.ListenUnix: %w", err)
	}
	// It is made where no one else can reach it, and then moved.
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

// checkUnused refuses a path where something else is, or another server listens.
func checkUnused(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there, and is no socket", path)
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

// Close implements net.Listener. It removes the socket, unless another server has taken its place.
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

// NetConn is the connection below, which sessions ask whether the client is still there.
func (c numbered) NetConn() net.Conn { return c.Conn }

type numberedAddr int64

func (numberedAddr) Network() string  { return "unix" }
func (a numberedAddr) String() string { return "unix:" + strconv.FormatInt(int64(a), 10) }
