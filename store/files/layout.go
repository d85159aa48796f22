package files

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Resource says where the object files of one resource are.
type Resource struct {
	// Prefix is what the keys of the resource begin with: /group/resource, say.
	Prefix string
	// Dir is the directory of the resource below the root, with slashes.
	Dir string
	// Namespaced says that a key goes on with a namespace and a name, and not with
	// a name alone.
	Namespaced bool
	// Status says that clients write the status apart from the rest, and so people
	// do not write it at all: it is not in the object file.
	Status bool
}

const (
	// private is the directory of what is not for people.
	private = ".annex"

	// clusterDir is the directory of objects that are in no namespace. No namespace
	// has that name.
	clusterDir = "_cluster"

	yamlSuffix = ".yaml"
)

// place is where the object file of a key is.
type place struct {
	resource  *Resource
	namespace string
	name      string
	// stem is the path of the file without its suffix, below the root.
	stem string
}

// layout maps objects to the paths of their files. All paths are relative to the root, with slashes.
type layout struct {
	resources []Resource
}

func newLayout(resources []Resource) (*layout, error) {
	l := &layout{resources: slices.Clone(resources)}
	for i, r := range l.resources {
		if !strings.HasPrefix(r.Prefix, "/") || strings.HasSuffix(r.Prefix, "/") {
			return nil, fmt.Errorf("prefix %q must start with a slash and not end with one", r.Prefix)
		}
		if r.Dir == "" || r.Dir != path.Clean(r.Dir) || path.IsAbs(r.Dir) || strings.HasPrefix(r.Dir, ".") {
			return nil, fmt.Errorf("%q is no directory for %s", r.Dir, r.Prefix)
		}
		for _, other := range l.resources[:i] {
			if within(r.Dir, other.Dir) || within(other.Dir, r.Dir) || within(r.Prefix, other.Prefix) || within(other.Prefix, r.Prefix) {
				return nil, fmt.Errorf("%s and %s are not apart", r.Prefix, other.Prefix)
			}
		}
	}
	return l, nil
}

func within(inner, outer string) bool { return inner == outer || strings.HasPrefix(inner, outer+"/") }

// place tells where the object of a key is for people to see. Not every key is of
// an object.
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

// at is the place of an object of the resource.
func (r *Resource) at(namespace, name string) place {
	return place{r, namespace, name, path.Join(r.dirOf(namespace), fileName(name))}
}

// dirOf is the directory of a namespace's objects.
func (r *Resource) dirOf(namespace string) string {
	if !r.Namespaced {
		return path.Join(r.Dir, clusterDir)
	}
	return path.Join(r.Dir, fileName(namespace))
}

func (r *Resource) key(namespace, name string) string {
	if !r.Namespaced {
		return r.Prefix + "/" + name
	}
	return r.Prefix + "/" + namespace + "/" + name
}

// resourceAt returns the resource whose directory holds a directory of objects.
func (l *layout) resourceAt(dir string) *Resource {
	for i := range l.resources {
		if r := &l.resources[i]; path.Dir(dir) == r.Dir && r.holds(path.Base(dir)) {
			return r
		}
	}
	return nil
}

// holds reports whether a directory of this name can have objects in it.
func (r *Resource) holds(name string) bool {
	if !r.Namespaced {
		return name == clusterDir
	}
	return name == fileName(name)
}

// Windows does not tell these from devices, whatever follows the first dot.
var devices = []string{"con", "prn", "aux", "nul"}

// maxStem is how long a file's name may be, in bytes, without its suffix.
const maxStem = 200

// fileName turns the name of an object into that of a file which every file
// system takes, and tells from all others: bytes that are not lower-case letters,
// digits or one of "-._" become %XX. What is too long is cut, and ends in %~ and a
// hash of the whole. Most names stay as they are.
func fileName(name string) string {
	stem, _, _ := strings.Cut(name, ".")
	device := slices.Contains(devices, stem) ||
		len(stem) == 4 && (strings.HasPrefix(stem, "com") || strings.HasPrefix(stem, "lpt")) && stem[3] >= '0' && stem[3] <= '9'
	suffixed := strings.HasSuffix(name, recordSuffix) // the first format told records from directories by it
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case i == 0 && (device || c == '.' || c == '_'), // hidden, or ours
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

// checkName refuses names that objects of no kind can have.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is missing", what)
	case strings.Contains(name, "/"), name == ".", name == "..":
		return fmt.Errorf("%s %q is no name", what, name)
	}
	return nil
}
