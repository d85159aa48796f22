package crds

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/base/filewatch"
)

const (
	fieldManager = "annex-crds"

	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second

	// patience is how long a definition may take until its objects are served. If it takes longer, that is reported,
	// and the definition is checked again with the next change.
	patience = 30 * time.Second
)

// Manifests applies the definitions in the files of folders: all of them when the server starts, and changed ones
// whenever files change. A definition whose file was removed stays, with its objects.
type Manifests struct {
	dirs    []string
	brought []manifest // from the program
	client  *client.ApiextensionsV1Client

	loading sync.Mutex        // held while files are read and applied
	applied map[string][]byte // by name of the definition

	mu    sync.Mutex
	ready error
}

// NewManifests reads the files of folders, and of the program's file system unless that is nil. It does not apply
// them before Run. An error names the missing folder, or the file that is not a definition in YAML or JSON.
func NewManifests(dirs []string, program fs.FS, config *rest.Config) (*Manifests, error) {
	var brought []manifest
	if program != nil {
		var err error
		if brought, err = readFolder(program, ""); err != nil {
			return nil, err
		}
	}
	if _, err := readManifests(brought, dirs); err != nil {
		return nil, err
	}
	definitions, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for definitions: %w", err)
	}
	return &Manifests{
		dirs:    dirs,
		brought: brought,
		client:  definitions,
		applied: map[string][]byte{},
		ready:   errors.New("the CustomResourceDefinitions of files are not applied yet"),
	}, nil
}

// Run applies the definitions until the context ends. Errors are logged, once, and leave earlier definitions in
// place.
func (m *Manifests) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if len(m.dirs) == 0 {
		m.loadOnce(ctx)
	}
	for _, dir := range m.dirs {
		all.Go(func() { filewatch.RunDir(ctx, "Folder of CustomResourceDefinitions", dir, m.load) })
	}
}

// Ready returns nil as soon as all definitions have been applied and their objects are served; before that, an error
// names the missing ones. It stays nil if files become invalid later.
func (m *Manifests) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready
}

// loadOnce applies definitions that do not change.
func (m *Manifests) loadOnce(ctx context.Context) {
	for reported := ""; ; {
		err := m.load(ctx)
		if err == nil {
			return
		}
		if err.Error() != reported {
			reported = err.Error()
			klog.FromContext(ctx).Error(err, "Failed to apply the CustomResourceDefinitions of the program")
		}
		if !await.Sleep(ctx, clock.RealClock{}, patience) {
			return
		}
	}
}

func (m *Manifests) load(ctx context.Context) error {
	m.loading.Lock()
	defer m.loading.Unlock()
	all, err := readManifests(m.brought, m.dirs)
	if err == nil {
		err = m.apply(ctx, all)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready != nil {
		m.ready = err
	}
	return err
}

// apply applies changed definitions. One rejected definition does not affect the others.
func (m *Manifests) apply(ctx context.Context, all []manifest) error {
	var errs []error
	gone := maps.Clone(m.applied)
	for _, d := range all {
		delete(gone, d.name)
		if bytes.Equal(m.applied[d.name], d.json) {
			continue
		}
		if err := m.applyOne(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.source, err))
			continue
		}
		m.applied[d.name] = d.json
	}
	for name := range gone {
		delete(m.applied, name)
		klog.FromContext(ctx).Info("CustomResourceDefinition removed from all files, keeping the definition and its objects", "name", name)
	}
	return errors.Join(errs...)
}

func (m *Manifests) applyOne(ctx context.Context, d manifest) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := metav1.PatchOptions{FieldManager: fieldManager, Force: new(true), FieldValidation: metav1.FieldValidationStrict}
	if err := retry(ctx, func() (bool, error) {
		_, err := m.client.CustomResourceDefinitions().Patch(ctx, d.name, types.ApplyPatchType, d.json, options)
		return refused(err), err
	}); err != nil {
		return err
	}
	return retry(ctx, func() (bool, error) {
		definition, err := m.client.CustomResourceDefinitions().Get(ctx, d.name, metav1.GetOptions{})
		if err != nil {
			return refused(err), err
		}
		return m.served(ctx, definition)
	})
}

// served reports whether the state of a definition is final. The error is nil if its objects are served; a conflict
// of names is a final error.
func (m *Manifests) served(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	if c := apihelpers.FindCRDCondition(d, apiextensionsv1.NamesAccepted); c != nil && c.Status == apiextensionsv1.ConditionFalse {
		return true, fmt.Errorf("the names of %s are not accepted: %s", d.Name, c.Message)
	}
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		return false, fmt.Errorf("%s is not established yet", d.Name)
	}
	for _, v := range d.Spec.Versions {
		if !v.Served {
			continue
		}
		list := m.client.RESTClient().Get().AbsPath("/apis", d.Spec.Group, v.Name, d.Spec.Names.Plural).Param("limit", "1")
		if err := list.Do(ctx).Error(); apierrors.IsNotFound(err) {
			return false, fmt.Errorf("%s is not served yet in version %s", d.Name, v.Name)
		}
	}
	return true, nil
}

// refused reports whether an error recurs with the same file.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest &&
		status.Status().Code < http.StatusInternalServerError &&
		status.Status().Code != http.StatusTooManyRequests
}

// retry calls try until it returns no error, or a final one.
func retry(ctx context.Context, try func() (final bool, err error)) error {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		if final, err := try(); final || err == nil || !await.Sleep(ctx, clock.RealClock{}, pause) {
			return err
		}
	}
}

// manifest is a definition in a file.
type manifest struct {
	source string // the file, with the number of the document
	name   string
	json   []byte
}

// readManifests reads the definitions of all folders, in addition to brought.
func readManifests(brought []manifest, dirs []string) ([]manifest, error) {
	all := slices.Clone(brought)
	for _, dir := range dirs {
		definitions, err := readFolder(os.DirFS(dir), dir)
		if err != nil {
			return nil, err
		}
		all = append(all, definitions...)
	}
	sources := map[string]string{}
	for _, d := range all {
		if other := sources[d.name]; other != "" {
			return nil, fmt.Errorf("%s: %s is also defined by %s", d.source, d.name, other)
		}
		sources[d.name] = d.source
	}
	return all, nil
}

// readFolder reads the files of a folder, in the order of their names. Errors begin with path.
func readFolder(dir fs.FS, path string) ([]manifest, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("folder of CustomResourceDefinitions: %w", in(path, err))
	}
	var all []manifest
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			continue // such as the links of mounted config maps, and README.md
		}
		text, err := fs.ReadFile(dir, entry.Name())
		if err != nil {
			return nil, fmt.Errorf("CustomResourceDefinition: %w", in(path, err))
		}
		definitions, err := readManifest(filepath.Join(path, entry.Name()), text)
		if err != nil {
			return nil, err
		}
		all = append(all, definitions...)
	}
	return all, nil
}

// in makes an error of a folder contain the complete path of the file.
func in(path string, err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		of.Path = filepath.Join(path, of.Path)
	}
	return err
}

func readManifest(file string, text []byte) ([]manifest, error) {
	var all []manifest
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for i := 1; ; i++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		source := file
		if i > 1 {
			source = fmt.Sprintf("%s, document %d", file, i)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		d, err := parseManifest(document)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if d != nil {
			d.source = source
			all = append(all, *d)
		}
	}
}

// parseManifest returns nil for a document with nothing but comments.
func parseManifest(document []byte) (*manifest, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	if string(text) == "null" {
		return nil, nil
	}
	var named metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(text, &named); err != nil {
		return nil, err
	}
	want := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	switch {
	case named.GroupVersionKind() != want:
		return nil, fmt.Errorf("apiVersion %q, kind %q: must be %s and %s", named.APIVersion, named.Kind, want.GroupVersion(), want.Kind)
	case named.Name == "":
		return nil, errors.New("metadata.name is empty: must be PLURAL.GROUP")
	}
	return &manifest{name: named.Name, json: text}, nil
}
