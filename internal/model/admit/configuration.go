package admit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverinstall "k8s.io/apiserver/pkg/apis/apiserver/install"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
)

// configurations are the configurations of plugins, by name.
type configurations map[string][]byte

// ReadConfiguration reads an AdmissionConfiguration and the files that it references, whose paths are relative to its
// own. It may configure the existing plugins, enabled or not; an unknown plugin is an error. If file is empty, no
// plugin has a configuration.
//
// Upstream's reader is not used: it treats a file that it cannot decode as one of another format, ignores unknown
// plugins, and ends the process if a file is missing.
func ReadConfiguration(file string, plugins []string) (admission.ConfigProvider, error) {
	all := configurations{}
	if file == "" {
		return all, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("Options.Admission.ConfigFile: %w", err)
	}
	parsed, err := parseConfiguration(data)
	if err != nil {
		return nil, fmt.Errorf("Options.Admission.ConfigFile %s: %w", file, err)
	}
	for i, p := range parsed.Plugins {
		content, err := contentOf(p, filepath.Dir(file))
		_, twice := all[p.Name]
		switch {
		case p.Name == "":
			err = errors.New("name: it is missing")
		case !slices.Contains(plugins, p.Name):
			err = fmt.Errorf("name: unknown plugin %q; %s", p.Name, thereAre(plugins))
		case twice:
			err = fmt.Errorf("name: %q is configured already", p.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("Options.Admission.ConfigFile %s: plugins[%d].%w", file, i, err)
		}
		all[p.Name] = content
	}
	return all, nil
}

func thereAre(plugins []string) string {
	if len(plugins) == 0 {
		return "the server has none"
	}
	return "there are " + strings.Join(plugins, ", ")
}

func parseConfiguration(data []byte) (*apiserver.AdmissionConfiguration, error) {
	scheme := runtime.NewScheme()
	apiserverinstall.Install(scheme)
	obj, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	parsed, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("not an AdmissionConfiguration of %s", apiserverv1.SchemeGroupVersion)
	}
	return parsed, nil
}

// contentOf returns the configuration of a plugin: the inline one, or the content of the referenced file; nil if
// there is neither.
func contentOf(p apiserver.AdmissionPluginConfiguration, dir string) ([]byte, error) {
	if p.Configuration != nil {
		if p.Path != "" {
			return nil, errors.New("path: path and configuration exclude each other: set one of them")
		}
		return p.Configuration.Raw, nil
	}
	if p.Path == "" {
		return nil, nil
	}
	path := p.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	return content, nil
}

// ConfigFor implements admission.ConfigProvider.
func (c configurations) ConfigFor(plugin string) (io.Reader, error) {
	content, ok := c[plugin]
	if !ok || content == nil {
		return nil, nil
	}
	return bytes.NewReader(content), nil
}
