package apitest_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
)

// putStored stores data at a key of a stopped server.
func putStored(t *testing.T, options annex.Options, key, data string) {
	t.Helper()
	j, err := embedded.Open(filepath.Join(options.DataDir, "storage"), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{Idle: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.Put(t.Context(), store.Value{Key: key, Data: []byte(data)}, 0)
	if err := errors.Join(err, core.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestStart_changedFieldTypes_namesObjects(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	_, stop := run(t, shop(), options)
	stop()
	putStored(
		t,
		options,
		"/shop.example.com/widgets/default/old",
		`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"old","namespace":"default"},"spec":{"size":{"small":true}}}`,
	)
	_, err := annex.New(t.Context(), shop(), options)
	if err == nil || !strings.Contains(err.Error(), "1 widgets.shop.example.com as v1, application/json, of which "+
		"/shop.example.com/widgets/default/old: ") ||
		!strings.Contains(err.Error(), "restore the types that fields had when the objects were stored; "+
			"Options.ServeDespiteUndecodable serves all other objects") {
		t.Errorf("a server whose objects cannot be decoded: %v", err)
	}
	if out, err := storageVerb(
		t,
		options,
		"stats",
	); err != nil ||
		!strings.Contains(out, "(cannot be decoded: /shop.example.com/widgets/default/old: ") {
		t.Errorf("storage stats: %v\n%s", err, out)
	}
	options.ServeDespiteUndecodable = true
	instance, _ := run(t, shop(), options)
	clientOf(t, instance).create("new")
}

// After objects stored in plain text have been encrypted, while the server runs, their plain text is nowhere on the
// disk any more.
func TestRewrite_encrypted_plainTextIsGone(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	const secret = "plain-text-on-the-disk"
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	instance, stop := run(t, shop(), options)
	c := clientOf(t, instance)
	for i := range 50 {
		c.create(fmt.Sprint("w", i), spec(fields{"options": fields{"note": secret}}))
	}
	stop()
	if !inFiles(t, options.DataDir, secret) {
		t.Fatal("the secret is nowhere: the test tests nothing")
	}
	options.EncryptionConfigFile = encryptionConfig(t, keyed("secretbox", "key1", secret1), unencrypted)
	run(t, shop(), options)
	if out, err := storageVerb(t, options, "rewrite", "--compact"); err != nil || !strings.Contains(out, "50 rewritten") {
		t.Fatalf("storage rewrite --compact: %v\n%s", err, out)
	}
	if inFiles(t, options.DataDir, secret) {
		t.Error("the disk still holds plain text")
	}
}
