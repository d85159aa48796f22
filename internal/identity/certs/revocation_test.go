package certs

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func revoke(t *testing.T, u *Users, r Revocation) []Certificate {
	t.Helper()
	revoked, err := u.Revoke(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return revoked
}

// readList returns the list of a folder.
func readList(t *testing.T, dir string) *revocationList {
	t.Helper()
	authority, err := usersAt(dir, now()).existing()
	if err != nil {
		t.Fatal(err)
	}
	list, err := readRevocations(folder(dir), authority)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestRevoke_staysListed(t *testing.T) {
	dir, start := t.TempDir(), now()
	u := usersAt(dir, start)
	first, second := create(t, u, NewUser{Name: "alice"}), create(t, u, NewUser{Name: "alice"})
	bob := create(t, u, NewUser{Name: "bob"})

	// Revoke one of two certificates, with the number in openssl's spelling.
	serial := strings.ToUpper(first.Serial()[:2] + ":" + first.Serial()[2:])
	got := revoke(t, usersAt(dir, start.Add(time.Minute)), Revocation{Name: "alice", Serial: serial})
	if len(got) != 1 || got[0].Serial != first.Serial() || !got[0].Revoked.Equal(start.Add(time.Minute)) {
		t.Errorf("revoked: %+v", got)
	}
	// Revoke the others. The first one keeps its time.
	revoke(t, usersAt(dir, start.Add(time.Hour)), Revocation{Name: "alice"})
	again := revoke(t, usersAt(dir, start.Add(2*time.Hour)), Revocation{Name: "alice"})
	if n := readList(t, dir).Number.Int64(); n != 2 {
		t.Errorf("the list has number %d after two changes and a repetition", n)
	}
	if len(again) != 2 {
		t.Errorf("revoked again: %+v", again)
	}
	want := map[string]time.Duration{first.Serial(): time.Minute, second.Serial(): time.Hour}
	for _, c := range list(t, u) {
		after, revoked := want[c.Serial]
		switch {
		case revoked && (c.State != Revoked || !c.Revoked.Equal(start.Add(after))):
			t.Errorf("of %s: %+v", c.Name, c)
		case !revoked && (c.State != Valid || c.Revoked != nil || c.Serial != bob.Serial()):
			t.Errorf("of %s: %+v", c.Name, c)
		}
	}
	server := openAt(t, dir, start.Add(3*time.Hour))
	if !server.Revoked(first.cert) || !server.Revoked(second.cert) || server.Revoked(bob.cert) || server.Revoked(server.admin.cert) {
		t.Error("a server that starts refuses others")
	}
	if n, _ := server.Revocations(); n != 2 {
		t.Errorf("%d are revoked", n)
	}

	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	out, err := exec.Command(openssl, "crl", "-in", filepath.Join(dir, "ca.crl"), "-CAfile", filepath.Join(dir, "ca.crt"), "-noout", "-text").
		CombinedOutput()
	for _, want := range []string{"verify OK", strings.ToUpper(first.Serial()), strings.ToUpper(second.Serial()), "X509v3 CRL Number"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("openssl: %v, without %q\n%s", err, want, out)
		}
	}
}

func TestRevoke_invalidRequest(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenUsers(dir, nil).Revoke(t.Context(), Revocation{Name: "alice"}); !errors.As(err, new(Refusal)) {
		t.Errorf("without an authority: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	server := open(t, Options{Dir: dir})
	u := OpenUsers(dir, nil)
	alice, bob := create(t, u, NewUser{Name: "alice"}), create(t, u, NewUser{Name: "bob"})
	for want, r := range map[string]Revocation{
		`no certificate was issued to a user "carol"`:                    {Name: "carol"},
		`no certificate was issued to a user ""`:                         {},
		`annex-admin is the administrator`:                               {Name: AdminUser},
		`Revocation.Serial "alice" is not a serial number`:               {Name: "alice", Serial: "alice"},
		`no certificate of alice has this serial number`:                 {Name: "alice", Serial: bob.Serial()},
		`Revocation.Serial 00: no certificate of annex-admin has this s`: {Name: AdminUser, Serial: "00"},
	} {
		if _, err := u.Revoke(t.Context(), r); !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	if readList(t, dir) != nil {
		t.Error("something was revoked")
	}
	revoke(t, u, Revocation{Name: AdminUser, Serial: serialOf(server.admin.cert)})
	if restarted := open(t, Options{Dir: dir}); !restarted.Revoked(server.admin.cert) || restarted.Revoked(alice.cert) {
		t.Error("the administrator's certificate is not what is revoked")
	}
}

// Authorities may have the same name, and their certificates the same number.
func TestRevoked_otherAuthority_isNotAffected(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	alice := create(t, OpenUsers(dir, nil), NewUser{Name: "alice"})
	authority := open(t, Options{Dir: other}).authority
	der, err := x509.CreateCertificate(rand.Reader, alice.cert, authority.cert, alice.cert.PublicKey, authority.key)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	revoke(t, OpenUsers(dir, nil), Revocation{Name: "alice"})
	server := open(t, Options{Dir: dir})
	if foreign.SerialNumber.Cmp(alice.cert.SerialNumber) != 0 || string(foreign.RawIssuer) != string(alice.cert.RawIssuer) {
		t.Fatal("the test is none")
	}
	if !server.Revoked(alice.cert) || server.Revoked(foreign) {
		t.Errorf("revoked: own %t, foreign %t", server.Revoked(alice.cert), server.Revoked(foreign))
	}
}

func TestOpen_brokenRevocationList_isRefused(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		create(t, OpenUsers(d, nil), NewUser{Name: "alice"})
		revoke(t, OpenUsers(d, nil), Revocation{Name: "alice"})
	}
	path := filepath.Join(dir, "ca.crl")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(filepath.Join(other, "ca.crl"))
	if err != nil {
		t.Fatal(err)
	}
	authority := open(t, Options{Dir: other}).authority
	delta := readList(t, other)
	delta.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}}}
	der, err := x509.CreateRevocationList(rand.Reader, delta.RevocationList, authority.cert, authority.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseRevocations(
		pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}),
		authority.cert,
	); err == nil ||
		!strings.Contains(err.Error(), "critical extension 2.5.29.27") {
		t.Errorf("a list of differences: %v", err)
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":                {nil, "the file must have one PEM block of type X509 CRL"},
		"cut off":              {good[:len(good)/2], "the file must have one PEM block of type X509 CRL"},
		"two":                  {slices.Concat(good, good), "the file must have one PEM block of type X509 CRL"},
		"of another authority": {foreign, "the list was not signed by the certificate authority in the same folder"},
	} {
		if err := os.WriteFile(path, test.data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Options{Dir: dir})
		for _, want := range []string{path, test.want, "restore the list, or remove it"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, without %q", name, err, want)
			}
		}
		if _, err := OpenUsers(dir, nil).List(); err == nil {
			t.Errorf("%s: users are listed", name)
		}
		if _, err := OpenUsers(dir, nil).Revoke(t.Context(), Revocation{Name: "alice"}); err == nil {
			t.Errorf("%s: it is overwritten", name)
		}
		// A server in a cluster has no revocation list.
		if _, err := Open(t.Context(), Options{Dir: dir, ServingOnly: true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRevoked_brokenList_keepsPrevious(t *testing.T) {
	dir := t.TempDir()
	server := open(t, Options{Dir: dir})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { server.Run(ctx) })
	defer running.Wait()
	defer cancel()
	u := OpenUsers(dir, nil)
	alice, bob := create(t, u, NewUser{Name: "alice"}), create(t, u, NewUser{Name: "bob"})
	path := filepath.Join(dir, "ca.crl")
	revoke(t, u, Revocation{Name: "alice"})
	testwait.Until(t, "alice is revoked", func() bool { return server.Revoked(alice.cert) })
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func() error{
		"broken": func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"gone":   func() error { return os.Remove(path) },
	} {
		_, before := server.Revocations()
		if err := breakIt(); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, name+" is counted", func() bool { _, failures := server.Revocations(); return failures > before })
		if !server.Revoked(alice.cert) || server.Revoked(bob.cert) {
			t.Errorf("%s: what was in force is not", name)
		}
	}
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	revoke(t, u, Revocation{Name: "bob"})
	testwait.Until(t, "bob is revoked", func() bool { return server.Revoked(bob.cert) })

	// Restore an older list.
	_, before := server.Revocations()
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the older list is counted", func() bool { _, failures := server.Revocations(); return failures > before })
	if !server.Revoked(bob.cert) {
		t.Error("an older list is in force")
	}
}

func TestRevoke_concurrent(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range names {
		create(t, OpenUsers(dir, nil), NewUser{Name: name})
	}
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			if _, err := OpenUsers(dir, nil).Revoke(t.Context(), Revocation{Name: name}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list := readList(t, dir); len(list.at) != len(names) || list.Number.Int64() != int64(len(names)) {
		t.Errorf("number %s has %d", list.Number, len(list.at))
	}
}
