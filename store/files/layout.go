package files

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/annexapi/annex/store/driver"
)

// resource locates the object files of one resource. A status that clients write separately is not in the object
// file, because people do not write it at all.
type resource driver.Resource

const (
	// private is the directory of the files that are not for people.
	private = ".annex"

	// clusterDir is the directory of objects without a namespace. No namespace has that name.
	clusterDir = "_cluster"

	yamlSuffix = ".yaml"
)

// place is the location of the object file of a key.
type place struct {
	resource  *resource
	namespace string
	name      string
	// stem is the path of the file without its suffix, below the root.
	stem string
}

// layout maps objects to the paths of their files. All paths are relative to the root, with slashes.
type layout struct {
	resources []resource
}

func newLayout(resources []driver.Resource) (*layout, error) {
	l := &layout{}
	for _, served := range resources {
		r := resource(served)
		dir := r.dir()
		if !strings.HasPrefix(r.Prefix, "/") || strings.HasSuffix(r.Prefix, "/") {
			return nil, fmt.Errorf("prefix %q must start with a slash and not end with one", r.Prefix)
		}
		if dir == "" || path.IsAbs(dir) || strings.HasPrefix(dir, ".") {
			return nil, fmt.Errorf("%q is not a directory for %s", dir, r.Prefix)
		}
		for _, other := range l.resources {
			if within(dir, other.dir()) || within(other.dir(), dir) || within(r.Prefix, other.Prefix) || within(other.Prefix, r.Prefix) {
				return nil, fmt.Errorf("%s and %s are not apart", r.Prefix, other.Prefix)
			}
		}
		l.resources = append(l.resources, r)
	}
	return l, nil
}

func within(inner, outer string) bool { return inner == outer || strings.HasPrefix(inner, outer+"/") }

// place returns the place of the object file of a key. ok is false if the key is not an object's key.
func (l *layout) place(key string) (place, bool) {
	for i := range l.resources {
		r := &l.resources[i]
		rest, ok := strings.CutPrefix(key, r.Prefix+"/")
		if !ok {
			continue
		}
		namespace, name := "", rest
		if r.Namespaced {
			if namespace, name, ok = strings.Cut(rest, "/"); !ok || namespace == "" {
				return place{}, false
			}
		}
		if name == "" || strings.Contains(name, "/") {
			return place{}, false
		}
		return r.at(namespace, name), true
	}
	return place{}, false
}

// dir returns the directory of the resource below the root, with slashes.
func (r *resource) dir() string { return path.Join(r.Group, r.Resource) }

// at returns the place of an object of the resource.
func (r *resource) at(namespace, name string) place {
	return place{r, namespace, name, path.Join(r.dirOf(namespace), fileName(name))}
}

// dirOf returns the directory of a namespace's objects.
func (r *resource) dirOf(namespace string) string {
	if !r.Namespaced {
		return path.Join(r.dir(), clusterDir)
	}
	return path.Join(r.dir(), fileName(namespace))
}

func (r *resource) key(namespace, name string) string {
	if !r.Namespaced {
		return r.Prefix + "/" + name
	}
	return r.Prefix + "/" + namespace + "/" + name
}

// resourceAt returns the resource whose objects are in this directory, nil if there is none.
func (l *layout) resourceAt(dir string) *resource {
	parent := path.Dir(dir)
	for i := range l.resources {
		if r := &l.resources[i]; parent == r.dir() && r.holds(path.Base(dir)) {
			return r
		}
	}
	return nil
}

// holds reports whether a directory of this name can hold objects of the resource.
func (r *resource) holds(name string) bool {
	if !r.Namespaced {
		return name == clusterDir
	}
	return name == fileName(name)
}

// Windows takes these names for devices, whatever follows the first dot.
var devices = []string{"con", "prn", "aux", "nul"}

// maxStem is the largest length of a file's name, in bytes, without its suffix.
const maxStem = 200

// fileName turns the name of an object into a file name that every file system accepts and distinguishes from all
// others. Bytes other than lower-case letters, digits and "-._" become %XX. A name that is too long is cut, and ends
// in %~ and a hash of the whole name. Most names stay the same.
func fileName(name string) string {
	stem, _, _ := strings.Cut(name, ".")
	device := slices.Contains(devices, stem) ||
		len(stem) == 4 && (strings.HasPrefix(stem, "com") || strings.HasPrefix(stem, "lpt")) && stem[3] >= '0' && stem[3] <= '9'
	suffixed := strings.HasSuffix(name, recordSuffix) // the first format distinguished records from directories by it
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case i == 0 && (device || c == '.' || c == '_'), // hidden, or reserved here
			i == len(name)-1 && c == '.',
			suffixed && i == len(name)-len(recordSuffix):
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '.', c == '_':
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	encoded := b.String()
	if len(encoded) <= maxStem {
		return encoded
	}
	sum := sha256.Sum256([]byte(name))
	return encoded[:maxStem-34] + "%~" + hex.EncodeToString(sum[:16])
}

// checkName rejects names that no kind allows.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is missing", what)
	case strings.Contains(name, "/"), name == ".", name == "..":
		return fmt.Errorf("%s %q is not a valid name", what, name)
	}
	return nil
}
