package podspec

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pullPolicy returns the default pull policy of an image. An image with the tag latest, or without a tag, may change,
// so it is always pulled.
func pullPolicy(image string) corev1.PullPolicy {
	if latest(image) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// The grammar of image references: [host[:port]/]path[:tag][@digest].
var (
	reference = regexp.MustCompile(`^(?:(` + host + `(?::[0-9]+)?)/)?(` + component + `(?:/` + component + `)*)(?::(\w[\w.-]{0,127}))?` +
		`(?:@([A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[[:xdigit:]]{32,}))?$`)
	identifier = regexp.MustCompile(`^[a-f0-9]{64}$`)
	digests    = regexp.MustCompile(`^(sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})$`)
)

const (
	label     = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	host      = `(?:` + label + `(?:\.` + label + `)*|\[[a-fA-F0-9:]+\])`
	component = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`

	maxImagePath = 255
)

// latest reports whether an image has the tag latest, or neither a tag nor a digest. It returns false for an invalid
// reference.
func latest(image string) bool {
	if identifier.MatchString(image) {
		return false
	}
	domain, path := splitDomain(image)
	if name, _, _ := strings.Cut(path, ":"); strings.ToLower(name) != name {
		return false
	}
	parts := reference.FindStringSubmatch(domain + "/" + path)
	if parts == nil || len(parts[2]) > maxImagePath {
		return false
	}
	tag, digest := parts[3], parts[4]
	if digest != "" && !digests.MatchString(digest) {
		return false
	}
	return tag == "latest" || tag == "" && digest == ""
}

// splitDomain splits off the host of an image. The default host is Docker's, where images without an owner are in
// library.
func splitDomain(image string) (domain, path string) {
	const hub, library = "docker.io", "library/"
	first, rest, found := strings.Cut(image, "/")
	switch {
	case !found:
		return hub, library + image
	case first == "index.docker.io":
		domain, path = hub, rest
	case first == "localhost", strings.ContainsAny(first, ".:"), strings.ToLower(first) != first:
		domain, path = first, rest
	default:
		domain, path = hub, image
	}
	if domain == hub && !strings.Contains(path, "/") {
		path = library + path
	}
	return domain, path
}
