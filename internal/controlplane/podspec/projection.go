package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// projection is a volume with files from several sources, each with its own paths.
type projection struct {
	*check
	at    *field.Path
	paths []string
}

func (c *check) projected(at *field.Path, v *corev1.ProjectedVolumeSource) {
	c.mode(at.Child("defaultMode"), v.DefaultMode)
	c.user(at.Child("defaultUser"), v.DefaultUser)
	p := &projection{check: c, at: at}
	for i := range v.Sources {
		p.source(at.Child("sources").Index(i), &v.Sources[i])
	}
}

// take adds a path. It reports an error, about the value blamed, if another source has the path.
func (p *projection) take(path, blamed string) {
	if slices.Contains(p.paths, path) {
		p.invalid(p.at, blamed, "conflicting duplicate paths")
		return
	}
	p.paths = append(p.paths, path)
}

func (p *projection) source(at *field.Path, s *corev1.VolumeProjection) {
	n := 0
	if s.Secret != nil {
		n++
		p.keysOf(at.Child("secret"), s.Secret.Name, s.Secret.Items)
	}
	if s.ConfigMap != nil {
		n++
		p.keysOf(at.Child("configMap"), s.ConfigMap.Name, s.ConfigMap.Items)
	}
	if s.DownwardAPI != nil {
		n++
		for i := range s.DownwardAPI.Items {
			file := &s.DownwardAPI.Items[i]
			p.downwardFile(at.Child("downwardAPI"), file)
			if file.Path != "" {
				p.take(file.Path, file.Path)
			}
		}
	}
	if s.ServiceAccountToken != nil {
		n++
		p.token(at.Child("serviceAccountToken"), s.ServiceAccountToken)
	}
	if s.ClusterTrustBundle != nil {
		n++
		p.trustBundle(at.Child("clusterTrustBundle"), s.ClusterTrustBundle)
	}
	if s.PodCertificate != nil {
		n++
		p.certificate(at.Child("podCertificate"), s.PodCertificate)
	}
	if n > 1 {
		p.forbidden(at, "may not specify more than 1 volume type per source")
	}
}

func (p *projection) keysOf(at *field.Path, name string, items []corev1.KeyToPath) {
	p.filled(at.Child("name"), name)
	p.keys(at.Child("items"), items)
	for _, item := range items {
		if item.Path != "" {
			p.take(item.Path, name)
		}
	}
}

func (p *projection) token(at *field.Path, t *corev1.ServiceAccountTokenProjection) {
	switch seconds := t.ExpirationSeconds; {
	case seconds == nil:
		p.required(at.Child("expirationSeconds"), "")
	case *seconds < 10*60:
		p.invalid(at.Child("expirationSeconds"), *seconds, "may not specify a duration less than 10 minutes")
	case *seconds > 1<<32:
		p.invalid(at.Child("expirationSeconds"), *seconds, "may not specify a duration larger than 2^32 seconds")
	}
	if path := p.at.Child("path"); p.filled(path, t.Path) { // the path of the volume, not of the source
		p.file(path, t.Path)
	}
	p.user(at.Child("user"), t.User)
}

func (p *projection) trustBundle(at *field.Path, b *corev1.ClusterTrustBundleProjection) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		p.invalid(at, internal{b}, "only one of name and signerName may be used")
	case b.Name != nil:
		if *b.Name == "" {
			p.required(at.Child("name"), "must be a valid object name")
		}
		for _, wrong := range bundleName(*b.Name) {
			p.invalid(at.Child("name"), *b.Name, "not a valid clustertrustbundlename: "+wrong)
		}
		if b.LabelSelector != nil {
			p.invalid(at.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			p.required(at.Child("signerName"), "must be a valid signer name")
		}
		p.signer(at.Child("signerName"), *b.SignerName)
		p.selector(at.Child("labelSelector"), b.LabelSelector)
	default:
		p.required(at, "either name or signerName must be specified")
	}
	p.filled(at.Child("path"), b.Path)
	p.user(at.Child("user"), b.User)
	p.file(at.Child("path"), b.Path)
	p.take(b.Path, b.Path)
}

// bundleName returns the errors of the name of a trust bundle. The name of a signer's bundle begins with the signer's
// name.
func bundleName(name string) []string {
	i := strings.LastIndex(name, ":")
	switch {
	case i < 0:
		return subdomain(name)
	case i == 0:
		return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
	}
	signer := strings.ReplaceAll(name[:i], ":", "/")
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix)}
	}
	return subdomain(rest)
}

const (
	day = 24 * 60 * 60
	// maxLifetime is the maximum validity of a certificate, in seconds.
	maxLifetime = 91 * day
)

var keyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func (p *projection) certificate(at *field.Path, s *corev1.PodCertificateProjection) {
	p.signer(at.Child("signerName"), s.SignerName)
	for _, key := range sorted(s.UserAnnotations) {
		p.add(validation.IsDomainPrefixedKey(at.Child("userAnnotations"), strings.ToLower(key))...)
	}
	if err := apivalidation.ValidateAnnotationsSize(s.UserAnnotations); err != nil {
		p.add(field.TooLong(at.Child("userAnnotations"), "", apivalidation.TotalAnnotationSizeLimitB))
	}
	p.user(at.Child("user"), s.User)
	oneOf(p.check, at.Child("keyType"), s.KeyType, keyTypes...)
	if seconds := s.MaxExpirationSeconds; seconds != nil {
		if *seconds < 3600 {
			p.invalid(at.Child("maxExpirationSeconds"), *seconds, "if provided, maxExpirationSeconds must be >= 3600")
		}
		most := int32(maxLifetime)
		if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			most = day
		}
		if *seconds > most {
			p.invalid(at.Child("maxExpirationSeconds"), *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
		}
	}
	none := true
	for _, file := range []struct{ field, path string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath}, {"certificateChainPath", s.CertificateChainPath},
	} {
		if file.path != "" {
			none = false
			p.file(at.Child(file.field), file.path)
			p.take(file.path, file.path)
		}
	}
	if none {
		p.required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}

// signer requires a name such as example.com/my-signer.
func (c *check) signer(at *field.Path, name string) {
	if !c.filled(at, name) {
		return
	}
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		c.invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	domain, path := parts[0], parts[1]
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		c.add(field.TooLong(at, "", validation.DNS1123SubdomainMaxLength))
	}
	c.firstWrong(at, domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		c.invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	c.firstWrong(at, path, validation.IsDNS1123Subdomain)
	const most = 2*validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 2
	if len(name) > most {
		c.add(field.TooLong(at, "", most))
	}
}

// firstWrong reports the errors of the first invalid part between dots.
func (c *check) firstWrong(at *field.Path, text string, validate func(string) []string) {
	for part := range strings.SplitSeq(text, ".") {
		if wrong := validate(part); len(wrong) > 0 {
			for _, detail := range wrong {
				c.invalid(at, text, fmt.Sprintf("validating label %q: %s", part, detail))
			}
			return
		}
	}
}
