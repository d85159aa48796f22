package accounts

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/identity/jws"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func write(t *testing.T, path string, blocks ...*pem.Block) string {
	t.Helper()
	var data bytes.Buffer
	for _, block := range blocks {
		if err := pem.Encode(&data, block); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func must[T any](t *testing.T, value T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return must(t, key, err)
}

func privateBlock(t *testing.T, key crypto.Signer) *pem.Block {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return &pem.Block{Type: "PRIVATE KEY", Bytes: must(t, der, err)}
}

func publicBlock(t *testing.T, key crypto.Signer) *pem.Block {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	return &pem.Block{Type: "PUBLIC KEY", Bytes: must(t, der, err)}
}

func idOf(t *testing.T, key crypto.Signer) string {
	t.Helper()
	k, err := jws.NewKey(key.Public())
	return must(t, k, err).ID
}

func ids(keys *Keys) []string {
	var all []string
	for _, k := range keys.Verifying() {
		all = append(all, k.ID)
	}
	return all
}

func TestOpenKeys_makesKeyOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "service-account.key")
	first, err := OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	again, err := OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true})
	if err != nil {
		t.Fatal(err)
	}
	if first.Signer().ID != again.Signer().ID {
		t.Error("a restart makes another key")
	}
	one, err := OpenKeys(KeyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := OpenKeys(KeyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if one.Signer().ID == two.Signer().ID || !slices.Equal(ids(one), []string{one.Signer().ID}) {
		t.Error("servers without files share a key")
	}
}

func TestOpenKeys_opensslFiles(t *testing.T) {
	t.Parallel()
	dir, ec := t.TempDir(), ecKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecDER, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, ec.Public(), ec)
	if err != nil {
		t.Fatal(err)
	}
	parameters := &pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}}
	for name, test := range map[string]struct {
		blocks []*pem.Block
		want   []string
	}{
		"PKCS #8": {[]*pem.Block{privateBlock(t, ec)}, []string{idOf(t, ec)}},
		"PKCS #1": {[]*pem.Block{{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}}, []string{idOf(t, rsaKey)}},
		"SEC 1":   {[]*pem.Block{parameters, {Type: "EC PRIVATE KEY", Bytes: ecDER}}, []string{idOf(t, ec)}},
		"public": {[]*pem.Block{publicBlock(t, ec), {Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)}},
			[]string{idOf(t, ec), idOf(t, rsaKey)}},
		"certificate":  {[]*pem.Block{{Type: "CERTIFICATE", Bytes: cert}}, []string{idOf(t, ec)}},
		"private last": {[]*pem.Block{publicBlock(t, rsaKey), privateBlock(t, ec)}, []string{idOf(t, ec), idOf(t, rsaKey)}},
	} {
		keys, err := OpenKeys(KeyOptions{Files: []string{write(t, filepath.Join(dir, name), test.blocks...)}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := ids(keys)[1:]; !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestOpenKeys_invalidFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, content string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write(t, filepath.Join(dir, "good"), privateBlock(t, ecKey(t)))
	open := write(t, filepath.Join(dir, "open"), privateBlock(t, ecKey(t)))
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	retired := publicBlock(t, ecKey(t))
	retired.Headers = map[string]string{until: "tomorrow"}
	for _, test := range []struct{ signing, verifying, want string }{
		{filepath.Join(dir, "none"), "", "Options.ServiceAccounts.SigningKeyFile " + dir + "/none: no such file or directory"},
		{dir, "", "Options.ServiceAccounts.SigningKeyFile " + dir + ": read " + dir + ": is a directory"},
		{file("empty", "", 0o600), "", "empty: it has no key in PEM"},
		{file("text", "secret", 0o600), "", "text: it has no key in PEM"},
		{write(t, filepath.Join(dir, "public"), publicBlock(t, ecKey(t))), "", "public: the file must have one private key, not 0"},
		{write(t, filepath.Join(dir, "two"), privateBlock(t, ecKey(t)), privateBlock(t, ecKey(t))), "", "two: the file must have one " +
			"private key, not 2"},
		{write(t, filepath.Join(dir, "ed25519"), privateBlock(t, edwards)), "", "ed25519: PEM block PRIVATE KEY: a key of the type " +
			"ed25519.PublicKey; use RSA or ECDSA"},
		{write(t, filepath.Join(dir, "broken"), &pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "", "broken: PEM block PRIVATE KEY: asn1"},
		{write(t, filepath.Join(dir, "other"), &pem.Block{Type: "X509 CRL"}), "", "other: PEM block X509 CRL: not a key"},
		{write(t, filepath.Join(dir, "time"), privateBlock(t, ecKey(t)), retired), "", `time: PEM block PUBLIC KEY: Verifies-Until ` +
			`"tomorrow" is not a time`},
		{open, "", "open: the file has a private key and is readable or writable by every user of this machine (mode 0644): chmod it to 600"},
		{good, filepath.Join(dir, "none"), "Options.ServiceAccounts.KeyFiles " + dir + "/none: no such file or directory"},
		{good, file("broken public", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n", 0o644), "Options.ServiceAccounts.KeyFiles " +
			dir + "/broken public: PEM block PUBLIC KEY: asn1"},
		{good, open, "Options.ServiceAccounts.KeyFiles " + open + ": the file has a private key"},
	} {
		options := KeyOptions{SigningFile: test.signing}
		if test.verifying != "" {
			options.Files = []string{test.verifying}
		}
		if _, err := OpenKeys(options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

func TestRotate_oldKeyVerifiesUntilExpiry(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	keys, err := OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	first := keys.Signer().ID
	described, err := Rotate(t.Context(), path, clock.Now(), clock.Now().Add(time.Hour), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(described) != 2 || !described[0].Signs || described[1].Signs || described[1].ID != first ||
		!described[1].VerifiesUntil.Equal(clock.Now().Add(time.Hour)) {
		t.Errorf("%+v", described)
	}
	second := described[0].ID
	if keys.Key(second) == nil { // Key accepts a token of another process at once, without Run
		t.Fatal("the new key is not known")
	}
	if keys.Signer().ID != second || !slices.Equal(ids(keys), []string{second, first}) {
		t.Errorf("%s signs, %q verify", keys.Signer().ID, ids(keys))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte("PRIVATE KEY")); n != 2 {
		t.Errorf("the old private key is kept: %d", n)
	}
	clock.Step(time.Hour + time.Second)
	if keys.Key(first) != nil || !slices.Equal(ids(keys), []string{second}) {
		t.Error("the retired key verifies for ever")
	}
	if described, err = Rotate(t.Context(), path, clock.Now(), time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	if len(described) != 2 || described[1].ID != second || described[1].VerifiesUntil != nil {
		t.Errorf("a key that is over is kept, or one without an end is not: %+v", described)
	}
	if described, err = Rotate(t.Context(), path, clock.Now(), time.Time{}, true); err != nil || len(described) != 1 {
		t.Errorf("%+v, %v", described, err)
	}
	if keys.Key(described[0].ID) == nil || keys.Key(second) != nil {
		t.Error("discarded keys verify")
	}
	if listed, err := List(path); err != nil || len(listed) != 1 || listed[0].ID != described[0].ID {
		t.Errorf("%+v, %v", listed, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestRotate_keepsKeyType(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, key := range map[string]crypto.Signer{"RS256": rsaKey, "ES384": p384} {
		path := write(t, filepath.Join(t.TempDir(), "key"), privateBlock(t, key))
		described, err := Rotate(t.Context(), path, time.Now(), time.Time{}, false)
		if err != nil || described[0].Algorithm != want || described[0].ID == idOf(t, key) {
			t.Errorf("%s: %+v, %v", want, described, err)
		}
	}
}

func TestRotate_invalidFile_isUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Rotate(
		t.Context(),
		filepath.Join(dir, "none"),
		time.Now(),
		time.Time{},
		false,
	); err == nil ||
		!strings.Contains(err.Error(), "none: no such file") {
		t.Error(err)
	}
	path := write(t, filepath.Join(dir, "public"), publicBlock(t, ecKey(t)))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(t.Context(), path, time.Now(), time.Time{}, false); err == nil || !strings.Contains(err.Error(), "must have one private key, not 0") {
		t.Error(err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Error("the file has changed")
	}
	if _, err := Rotate(
		t.Context(),
		filepath.Join(dir, "missing", "key"),
		time.Now(),
		time.Time{},
		false,
	); err == nil ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestRotate_concurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	if _, err := OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true}); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	const n = 8
	for range n {
		go func() {
			_, err := Rotate(t.Context(), path, time.Now(), time.Time{}, false)
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if all, err := List(path); err != nil || len(all) != n+1 {
		t.Errorf("%d keys, %v", len(all), err)
	}
}

func TestKeys_reload(t *testing.T) {
	t.Parallel()
	path, more := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "more")
	one, two := ecKey(t), ecKey(t)
	write(t, more, publicBlock(t, one))
	keys, err := OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true, Files: []string{more}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); keys.Run(ctx) }()
	defer func() { cancel(); <-done }()
	signs := keys.Signer().ID

	if err := os.WriteFile(more, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if keys.Key("unknown") != nil || keys.Key(idOf(t, one)) == nil {
			t.Fatal("a broken file changes the keys")
		}
	}
	write(t, more, publicBlock(t, two))
	testwait.NoError(t, "the other key", func(context.Context) error {
		if got := ids(keys); !slices.Equal(got, []string{signs, idOf(t, two)}) {
			return errors.New(strings.Join(got, " "))
		}
		return nil
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if keys.Key("unknown") != nil || keys.Signer().ID != signs {
		t.Error("a missing file changes the key")
	}
}
