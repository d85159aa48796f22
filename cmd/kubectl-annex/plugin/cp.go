package plugin

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	clientexec "k8s.io/client-go/util/exec"
)

type copyFlags struct {
	container  string
	noPreserve bool
}

func (p *plugin) newCopy() *cobra.Command {
	var given copyFlags
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files and folders to and from an object",
		Long: `Copies files and folders to and from an object of a kind with exec. One argument is a path in the object,
KIND/NAME:PATH, the other a path on this machine. The object must have the program tar. If the destination is an
existing folder, the copy is placed in it, with the name of the source.

The verb writes files of the object only below the destination, and fails if it would have to follow an existing link.
It skips symbolic links of the object, and in both directions everything that is neither a file nor a folder.`,
		Example: `  ` + p.called() + ` cp ./settings runner/x:/etc/app
  ` + p.called() + ` cp runner/x:/var/log ./logs`,
		ValidArgsFunction: p.completeCopy,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) != 2 {
				return misuse("pass a source and a destination; one of them must be KIND/NAME:PATH")
			}
			from, there := cutRemote(words[0])
			to, back := cutRemote(words[1])
			switch {
			case there && back:
				return misuse("%s and %s are both in objects: copy to this machine first", words[0], words[1])
			case !there && !back:
				return misuse("neither %s nor %s is in an object: one of them must be KIND/NAME:PATH", words[0], words[1])
			case from.path == "" || to.path == "":
				return misuse("no path: use KIND/NAME:PATH")
			}
			named := from.object + to.object
			o, err := p.object([]string{named}, string(roleExec), hasRole(roleExec))
			if err != nil {
				return err
			}
			if there {
				return p.download(cmd.Context(), o, from.path, to.path, given)
			}
			return p.upload(cmd.Context(), o, from.path, to.path, given)
		},
	}
	cmd.Flags().StringVarP(&given.container, "container", "c", "", "container, for objects with several containers")
	cmd.Flags().BoolVar(&given.noPreserve, "no-preserve", false, "when copying to an object: do not keep permissions and owners")
	return cmd
}

// place is the source or the destination of a copy.
type place struct{ object, path string }

// cutRemote splits KIND/NAME:PATH. A word that begins like a path is a local path, even with colons.
func cutRemote(word string) (place, bool) {
	object, path, ok := strings.Cut(word, ":")
	if !ok || object == "" || strings.HasPrefix(object, ".") || strings.HasPrefix(object, "/") || strings.Contains(object, `\`) {
		return place{path: word}, false
	}
	return place{object, path}, true
}

func (p *plugin) completeCopy(cmd *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(words) > 1 || strings.HasPrefix(typed, ".") || strings.HasPrefix(typed, "/") || strings.Contains(typed, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	offers, directive := p.completeObjects(hasRole(roleExec))(cmd, nil, typed)
	if strings.Contains(typed, "/") {
		for i := range offers {
			offers[i] += ":"
		}
	}
	if len(offers) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return offers, directive | cobra.ShellCompDirectiveNoSpace
}

// upload copies the local path from to the path to in the object.
func (p *plugin) upload(ctx context.Context, o object, from, to string, given copyFlags) error {
	local, err := filepath.EvalSymlinks(from)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", o, err)
	}
	if info, err := os.Stat(local); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return fmt.Errorf("copy to %s: %s is neither a file nor a folder", o, from)
	}
	if err := p.isThere(ctx, o); err != nil {
		return err
	}
	run := func(in io.Reader, out, errOut io.Writer, command ...string) error {
		return p.execute(ctx, o, roleExec, command, given.container, false, nil, in, out, errOut)
	}
	name := path.Base(path.Clean(to))
	into := path.Dir(path.Clean(to))
	var no clientexec.CodeExitError
	switch err := run(nil, io.Discard, io.Discard, "test", "-d", to); {
	case err == nil:
		into, name = to, filepath.Base(absolute(from))
	case !errors.As(err, &no):
		return err
	}
	command := []string{"tar", "-xmf", "-", "-C", into}
	if given.noPreserve {
		command = []string{"tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-", "-C", into}
	}
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	var leftOut []string
	go func() {
		var err error
		leftOut, err = pack(writer, local, name)
		packed <- errors.Join(err, writer.CloseWithError(err))
	}()
	err = run(reader, p.Out, p.ErrOut, command...)
	reader.Close()
	unread := <-packed
	for _, below := range leftOut {
		p.warnLeftOut(filepath.Join(from, below))
	}
	if unread != nil && !errors.Is(unread, io.ErrClosedPipe) {
		return fmt.Errorf("copy to %s: %w", o, unread)
	}
	return err
}

// absolute returns the absolute path, so that its last element is not a dot.
func absolute(local string) string {
	if whole, err := filepath.Abs(local); err == nil {
		return whole
	}
	return local
}

func (p *plugin) warnLeftOut(at string) {
	fmt.Fprintf(p.ErrOut, "warning: skipped %s: neither a file nor a folder\n", printable(at))
}

// pack writes a tar of a local path, which is not a link, under another name. It returns the omitted files, by their
// paths below it.
func pack(to io.Writer, local, name string) (leftOut []string, err error) {
	archive := tar.NewWriter(to)
	err = filepath.WalkDir(local, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(local, at)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		switch info.Mode().Type() {
		case 0, fs.ModeDir:
		case fs.ModeSymlink:
			if link, err = os.Readlink(at); err != nil {
				return err
			}
		default:
			leftOut = append(leftOut, below)
			return nil
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header.Name = path.Join(name, filepath.ToSlash(below))
		if info.IsDir() {
			header.Name += "/"
		}
		if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(at)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.CopyN(archive, file, header.Size) // a growing file, such as a log, is copied up to its size at the start
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s became shorter while it was copied", at)
		}
		return err
	})
	if err == nil { // an incomplete archive must not look complete
		err = archive.Close()
	}
	return leftOut, err
}

// download copies the path from in the object to a local path.
func (p *plugin) download(ctx context.Context, o object, from, to string, given copyFlags) error {
	if err := p.isThere(ctx, o); err != nil {
		return err
	}
	folder, name := path.Split(path.Clean(from))
	switch {
	case name == "" || name == "." || name == ".." || strings.HasSuffix(from, "/."):
		folder, name = path.Clean(from), "."
	case folder == "":
		folder = "."
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() && name != "." {
		to = filepath.Join(to, name)
	}
	if linked, err := filepath.EvalSymlinks(to); err == nil {
		to = linked // the user named the link
	}
	asked := name
	if strings.HasPrefix(name, "-") {
		asked = "./" + name // must not look like a flag
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	ran := make(chan error, 1)
	go func() {
		err := p.execute(ctx, o, roleExec, []string{"tar", "cf", "-", "-C", folder, asked}, given.container, false, nil, nil, writer, p.ErrOut)
		ran <- errors.Join(err, writer.CloseWithError(err))
	}()
	err := p.unpack(reader, name, absolute(to))
	if err == nil || errors.Is(err, errNothing) {
		// The end of a tar is padded. If the end is missing, the exit code has the reason.
		_, unread := io.Copy(io.Discard, reader)
		err = errors.Join(err, unread)
	} else {
		cancel()
	}
	reader.CloseWithError(err)
	failed := <-ran
	var exited clientexec.CodeExitError
	switch {
	case errors.As(failed, &exited):
		return exited
	case failed != nil && errors.Is(err, errNothing):
		return failed
	case err != nil:
		return fmt.Errorf("copy from %s: %w", o, err)
	}
	return failed
}

var errNothing = errors.New("the object sent no data")

// errOutside refuses a tar with paths outside the destination.
var errOutside = errors.New("the object sent a path outside of the requested one: copy stopped")

// errLink refuses to write through a link, which may lead anywhere.
var errLink = errors.New("the path on this machine is a link, or not a file: skipped")

// unpack writes the files of a tar to the path to; all entries must be name or below it. It never writes through
// links, whether from the tar or on disk; to itself is not a link.
func (p *plugin) unpack(from io.Reader, name, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer root.Close()
	some := false
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF) && !some:
			return errNothing
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		below, ok := belowName(header.Name, name)
		if !ok {
			return fmt.Errorf("%w: %q", errOutside, header.Name)
		}
		some = true
		at := filepath.Join(filepath.Base(to), filepath.FromSlash(below))
		if err := overwritable(root, at); err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(at, 0o755)
		case tar.TypeReg:
			err = writeFile(root, at, header.FileInfo().Mode().Perm(), archive)
		case tar.TypeLink: // a further name of a file in the archive
			below, ok := belowName(header.Linkname, name)
			if !ok {
				return fmt.Errorf("%w: %q", errOutside, header.Linkname)
			}
			err = linkFile(root, filepath.Join(filepath.Base(to), filepath.FromSlash(below)), at)
		default:
			p.warnLeftOut(header.Name)
		}
		if err != nil {
			return err
		}
	}
}

// overwritable refuses a path if it, or a part of it, is a link, or neither a file nor a folder.
func overwritable(root *os.Root, at string) error {
	for part := at; part != "."; part = filepath.Dir(part) {
		info, err := root.Lstat(part)
		if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			return fmt.Errorf("%q: %w", part, errLink)
		}
	}
	return nil
}

// belowName returns the part of an entry's path below name.
func belowName(entry, name string) (string, bool) {
	for _, part := range strings.Split(entry, "/") {
		if part == ".." {
			return "", false
		}
	}
	clean := path.Clean(entry)
	if name == "." {
		return clean, filepath.IsLocal(clean)
	}
	below, ok := strings.CutPrefix(clean+"/", name+"/")
	below = strings.TrimSuffix(below, "/")
	return below, ok && (below == "" || filepath.IsLocal(below))
}

func writeFile(root *os.Root, at string, mode fs.FileMode, from io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

// linkFile creates a hard link to a file.
func linkFile(root *os.Root, file, at string) error {
	if err := overwritable(root, file); err != nil {
		return err
	}
	if err := root.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if file == at {
		return nil
	}
	if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return root.Link(file, at)
}
