package annextest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/define"
)

// GoldenObjects fails the test if the server no longer reads objects that an earlier version of it stored. It keeps a
// stored object for each kind and version in a directory, which should be committed:
//
//	DIR/GROUP/VERSION/RESOURCE.json      the object as stored in that version
//	DIR/GROUP/VERSION/RESOURCE.pb        the same as protobuf, if the types have its methods
//	DIR/GROUP/VERSION/RESOURCE.hub.json  the object as the server reads it, in the hub version
//
// Each object sets every field. With UPDATE=1 in the environment, missing files are written, and new fields are added
// to existing files. Values in existing files never change, except in RESOURCE.hub.json: review its changes as a
// diff. To drop an object or a field of which no stored data is left, delete the file or the lines.
//
// Of the options, only Fuzz and Seed have an effect. Virtual kinds and kinds with a storage of their own are skipped,
// since the server does not store their objects.
func GoldenObjects(t *testing.T, server annex.Server, dir string, opts ...Option) {
	t.Helper()
	definition, scheme, err := compiled(server)
	if err != nil {
		t.Fatal(err)
	}
	goldens := goldensOf(definition, scheme, dir, compile(opts))
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			if err := g.check(os.Getenv("UPDATE") != ""); err != nil {
				t.Error(err)
			}
		})
	}
	if err := strayGoldens(dir, goldens); err != nil {
		t.Error(err)
	}
}

// golden is the stored object of a kind in one version.
type golden struct {
	kind    *define.Kind
	version *define.Version
	name    string
	path    string // without the extension
	scheme  *runtime.Scheme
	options *options
}

func goldensOf(definition *define.Server, scheme *runtime.Scheme, dir string, o *options) []*golden {
	var all []*golden
	o.settled = true
	for _, k := range definition.Kinds() {
		if k.Primary().Source != nil || k.Primary().CustomStorage != nil {
			continue
		}
		for _, v := range k.Versions {
			if v.SameType {
				continue
			}
			all = append(all, &golden{
				kind:    k,
				version: v,
				name:    versionName(k, v),
				path:    filepath.Join(dir, v.GroupVersion.Group, v.GroupVersion.Version, k.Resource),
				scheme:  scheme,
				options: o,
			})
		}
	}
	return all
}

const (
	storedJSON     = ".json"
	storedProtobuf = ".pb"
	readAs         = ".hub.json"
)

// check reads the golden object. If update is set, it first writes missing files and fields.
func (g *golden) check(update bool) error {
	old, err := os.ReadFile(g.path + storedJSON)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && !update:
		return fmt.Errorf("no stored object %s: run the test once with UPDATE=1, and commit the files that it writes", g.path+storedJSON)
	case err != nil && !missing:
		return fmt.Errorf("read stored object: %w", err)
	}
	full := g.full()
	if !missing {
		obj, err := g.decode(old)
		if err != nil {
			return err
		}
		if err := g.checkProtobuf(obj, update); err != nil {
			return err
		}
		said, could := fieldsOf(obj), fieldsOf(full)
		maps.DeleteFunc(could, func(field string, _ bool) bool { return said[field] })
		if len(could) > 0 && !update {
			return fmt.Errorf(
				"%s has no values for the new fields %s: run the test with UPDATE=1 to add them",
				g.path+storedJSON,
				strings.Join(slices.Sorted(maps.Keys(could)), ", "),
			)
		}
		complete(reflect.ValueOf(obj), reflect.ValueOf(full))
		full = obj
	}
	if update {
		if err := g.write(full); err != nil {
			return err
		}
	}
	return g.checkHub(update)
}

// full returns a new object that sets every field.
func (g *golden) full() runtime.Object {
	obj := g.version.New()
	source := filler(g.kind, g.options).NilChance(0).NumElements(1, 1).MaxDepth(goldenDepth)
	fill(source, obj)
	g.scheme.Default(obj)
	obj.GetObjectKind().SetGroupVersionKind(g.version.GroupVersion.WithKind(g.kind.Name))
	return obj
}

// goldenDepth bounds the nesting of objects of recursive types. It is less than maxDepth, because people read golden
// files.
const goldenDepth = 16

// decode reads an object that is stored as JSON, and reports fields that the current type does not have.
func (g *golden) decode(data []byte) (runtime.Object, error) {
	obj := g.version.New()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(obj); err != nil {
		return nil, fmt.Errorf("%s: the server does not read this stored object as it was written: %w; restore the field or, if no such "+
			"object is stored any more, delete the lines or the file", g.path+storedJSON, err)
	}
	return obj, nil
}

// checkProtobuf compares the objects stored as protobuf and as JSON.
func (g *golden) checkProtobuf(obj runtime.Object, update bool) error {
	data, err := os.ReadFile(g.path + storedProtobuf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if hasProtobuf(g.version) && !update {
			return fmt.Errorf("no stored object %s: run the test once with UPDATE=1, and commit the files that "+
				"it writes", g.path+storedProtobuf)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read stored object: %w", err)
	case !hasProtobuf(g.version):
		return fmt.Errorf("%s: the server can no longer read objects stored as protobuf: the Go type %s has no protobuf methods; generate "+
			"them or, if no such object is stored any more, delete the file", g.path+storedProtobuf, g.version.Type)
	}
	stored := g.version.New()
	if err := stored.(protobufObject).Unmarshal(data); err != nil {
		return fmt.Errorf("%s: the server can no longer read this stored object: %w", g.path+storedProtobuf, err)
	}
	stored.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	want := obj.DeepCopyObject()
	want.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if d := differences(want, stored); len(d) > 0 {
		return fmt.Errorf(
			"%s: %s is read as %s, not as %s: a field's protobuf number may have changed",
			g.path+storedProtobuf,
			d[0].path,
			d[0].is,
			d[0].was,
		)
	}
	return nil
}

// write writes a golden object.
func (g *golden) write(obj runtime.Object) error {
	obj.GetObjectKind().SetGroupVersionKind(g.version.GroupVersion.WithKind(g.kind.Name))
	data, err := json.MarshalIndent(obj, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", g.name, err)
	}
	if err := os.MkdirAll(filepath.Dir(g.path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(g.path+storedJSON, append(data, '\n'), 0o644); err != nil {
		return err
	}
	if !hasProtobuf(g.version) {
		return nil
	}
	// In storage, the envelope around the protobuf object holds its kind and version.
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	encoded, err := obj.(protobufObject).Marshal()
	if err != nil {
		return fmt.Errorf("encode %s: %w", g.name, err)
	}
	return os.WriteFile(g.path+storedProtobuf, encoded, 0o644)
}

// complete copies the fields that are unset in obj from full.
func complete(obj, full reflect.Value) {
	switch kind := obj.Kind(); {
	case !full.IsValid():
	case obj.IsZero():
		obj.Set(full)
	case encodesItself(obj.Type()):
	case kind == reflect.Pointer:
		complete(obj.Elem(), full.Elem())
	case kind == reflect.Struct:
		for i := range obj.NumField() {
			if obj.Field(i).CanSet() {
				complete(obj.Field(i), full.Field(i))
			}
		}
	case kind == reflect.Slice && obj.Type().Elem().Kind() != reflect.Uint8 && full.Len() > 0:
		for i := range obj.Len() {
			complete(obj.Index(i), full.Index(0))
		}
	case kind == reflect.Map && full.Len() > 0:
		for _, key := range obj.MapKeys() {
			value := reflect.New(obj.Type().Elem()).Elem()
			value.Set(obj.MapIndex(key))
			complete(value, full.MapIndex(full.MapKeys()[0]))
			obj.SetMapIndex(key, value)
		}
	}
}

// checkHub compares the hub object, decoded from the stored object, with the recorded one.
func (g *golden) checkHub(update bool) error {
	data, err := os.ReadFile(g.path + storedJSON)
	if err != nil {
		return fmt.Errorf("read stored object: %w", err)
	}
	obj, err := g.decode(data)
	if err != nil {
		return err
	}
	g.scheme.Default(obj)
	hub := g.kind.Hub()
	read := obj
	if g.version != hub {
		read = hub.New()
		if err := g.scheme.Convert(obj, read, nil); err != nil {
			return fmt.Errorf(
				"%s: the server can no longer read this stored object: conversion to %s: %w",
				g.path+storedJSON,
				hub.GroupVersion.Version,
				err,
			)
		}
	}
	read.GetObjectKind().SetGroupVersionKind(hub.GroupVersion.WithKind(hub.Type.Name()))
	encoded, err := json.MarshalIndent(read, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", g.name, err)
	}
	encoded = append(encoded, '\n')
	if update {
		return os.WriteFile(g.path+readAs, encoded, 0o644)
	}
	wanted, err := os.ReadFile(g.path + readAs)
	if err != nil {
		return fmt.Errorf("%s does not exist: run the test once with UPDATE=1, and commit the files that it writes", g.path+readAs)
	}
	if bytes.Equal(encoded, wanted) {
		return nil
	}
	was := hub.New()
	decoder := json.NewDecoder(bytes.NewReader(wanted))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(was); err != nil {
		return fmt.Errorf("%s: the hub no longer has the fields of this stored object: %w; if no data is lost, run the test with UPDATE=1 "+
			"and review the diff", g.path+readAs, err)
	}
	if d := differences(was, read); len(d) > 0 {
		return fmt.Errorf("%s is read differently now: %s was %s and is %s; correct the conversion or the default or, if the change is "+
			"intended, run the test with UPDATE=1 and review the diff", g.path+storedJSON, d[0].path, d[0].was, d[0].is)
	}
	return nil
}

// strayGoldens reports golden files that belong to no kind and version any more.
func strayGoldens(dir string, goldens []*golden) error {
	var problems []error
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		stored := strings.HasSuffix(path, storedJSON) && !strings.HasSuffix(path, readAs)
		if entry.IsDir() || !stored {
			return nil
		}
		known := slices.ContainsFunc(goldens, func(g *golden) bool { return g.path+storedJSON == path })
		if !known {
			problems = append(problems, fmt.Errorf("%s: the server does not have this kind and version, so it cannot read objects stored "+
				"in it: keep the version, with Unserved, or, if SERVER storage stats counts no such object, delete the file", path))
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(append(problems, err)...)
}
