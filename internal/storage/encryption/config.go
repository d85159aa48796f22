package encryption

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/secretfile"
)

// config is the content of a configuration file, without its secrets.
type config struct {
	file  string
	hash  string // of the file's content
	rules []rule
}

// rule is one entry of the resources in the file.
type rule struct {
	resources []schema.GroupResource
	providers []provider
}

// provider is one entry of a rule's providers.
type provider struct {
	kind     string   // aescbc, aesgcm, secretbox, kms or identity
	keys     []string // names of its keys; for kms, the name of the plugin
	endpoint string   // of the plugin, for kms only
}

// readConfig reads a configuration file. Its errors are one line and quote no secrets. It runs before the reader of
// k8s.io/apiserver, whose error about a file without a kind quotes the whole file, including secrets.
func readConfig(file string, reload bool) (*config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, mistake(file, withoutPath(err))
	}
	parsed, err := parse(data)
	if err != nil {
		return nil, mistake(file, err)
	}
	if errs := validation.ValidateEncryptionConfiguration(parsed, reload); len(errs) > 0 {
		return nil, mistake(file, inWords(parsed, errs[0]))
	}
	c := &config{file: file}
	if c.hash, err = encryptionconfig.GetEncryptionConfigHash(file); err != nil {
		return nil, mistake(file, withoutPath(err))
	}
	for _, r := range parsed.Resources {
		c.rules = append(c.rules, newRule(r))
	}
	if c.holdsKeys() {
		if err := private(file); err != nil {
			return nil, mistake(file, err)
		}
	}
	return c, nil
}

func mistake(file string, err error) error {
	return fmt.Errorf("encryption configuration %s: %w", file, err)
}

// withoutPath removes the path from a file error, for callers that add it themselves.
func withoutPath(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

var wanted = apiserverv1.SchemeGroupVersion.WithKind("EncryptionConfiguration")

func parse(data []byte) (*apiserver.EncryptionConfiguration, error) {
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	switch err := yaml.Unmarshal(data, &kind); {
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, oneLine(err)
	case schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind) != wanted:
		return nil, fmt.Errorf(
			"apiVersion %q and kind %q: must be %s and %s",
			kind.APIVersion,
			kind.Kind,
			wanted.GroupVersion(),
			wanted.Kind,
		)
	}
	scheme := apiruntime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, oneLine(err)
	}
	parsed, ok := object.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %T", object)
	}
	return parsed, nil
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

var ruleIndex = regexp.MustCompile(`^resources\[(\d+)\]`)

// inWords describes one mistake in a file and names the resources of its rule. It does not quote the invalid value,
// which may be a secret.
func inWords(parsed *apiserver.EncryptionConfiguration, err *field.Error) error {
	text := err.Field + ": " + err.Detail
	if strings.HasSuffix(err.Field, ".secret") {
		text += `; make one with "head -c 32 /dev/urandom | base64"`
	}
	match := ruleIndex.FindStringSubmatch(err.Field)
	if match == nil {
		return errors.New(text)
	}
	index, _ := strconv.Atoi(match[1]) // the expression matches digits only
	names := strings.Join(parsed.Resources[index].Resources, ", ")
	if names == "" {
		return errors.New(text)
	}
	return fmt.Errorf("%s (of %s)", text, names)
}

func newRule(r apiserver.ResourceConfiguration) rule {
	var result rule
	for _, name := range r.Resources {
		result.resources = append(result.resources, schema.ParseGroupResource(name))
	}
	for _, p := range r.Providers {
		result.providers = append(result.providers, newProvider(p))
	}
	return result
}

func newProvider(p apiserver.ProviderConfiguration) provider {
	switch {
	case p.AESCBC != nil:
		return provider{kind: "aescbc", keys: names(p.AESCBC.Keys)}
	case p.AESGCM != nil:
		return provider{kind: "aesgcm", keys: names(p.AESGCM.Keys)}
	case p.Secretbox != nil:
		return provider{kind: "secretbox", keys: names(p.Secretbox.Keys)}
	case p.KMS != nil:
		return provider{kind: "kms", keys: []string{p.KMS.Name}, endpoint: p.KMS.Endpoint}
	default:
		return provider{kind: "identity"}
	}
}

func names(keys []apiserver.Key) []string {
	var names []string
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return names
}

func (c *config) holdsKeys() bool {
	return slices.ContainsFunc(c.rules, func(r rule) bool {
		return slices.ContainsFunc(r.providers, func(p provider) bool {
			return p.kind != "kms" && p.kind != "identity"
		})
	})
}

// private returns an error if every user may read a file with keys.
func private(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return withoutPath(err)
	}
	return secretfile.Check(info, "keys")
}

// rule returns the rule for a resource. As in k8s.io/apiserver, a rule for the resource precedes a rule for its group,
// which precedes the rule for all resources.
func (c *config) rule(resource schema.GroupResource) (rule, bool) {
	for _, wanted := range []schema.GroupResource{
		resource, {Group: resource.Group, Resource: "*"}, {Group: "*", Resource: "*"},
	} {
		// A resource may be in several rules; join their providers.
		var found rule
		for _, r := range c.rules {
			if slices.Contains(r.resources, wanted) {
				found.resources = append(found.resources, wanted)
				found.providers = append(found.providers, r.providers...)
			}
		}
		if len(found.providers) > 0 {
			return found, true
		}
	}
	return rule{}, false
}

// unknown returns the names in the file that match none of the resources.
func (c *config) unknown(resources []schema.GroupResource) []string {
	var unknown []string
	for _, r := range c.rules {
		for _, named := range r.resources {
			if !slices.ContainsFunc(resources, func(has schema.GroupResource) bool { return matches(named, has) }) {
				unknown = append(unknown, named.String())
			}
		}
	}
	return unknown
}

func matches(named, resource schema.GroupResource) bool {
	switch {
	case named.Group == "*" && named.Resource == "*":
		return true
	case named.Resource == "*":
		return named.Group == resource.Group
	}
	return named == resource
}

// plugins returns readable names of the key management plugins, in the order of the file, which is also the order of
// the health checks of k8s.io/apiserver.
func (c *config) plugins() []string {
	var plugins []string
	for _, r := range c.rules {
		for _, p := range r.providers {
			if p.kind == "kms" {
				plugins = append(plugins, fmt.Sprintf("provider kms %q of %s at %s", p.keys[0], list(r.resources), p.endpoint))
			}
		}
	}
	return plugins
}

func list(resources []schema.GroupResource) string {
	var names []string
	for _, r := range resources {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}
