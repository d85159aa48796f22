package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"
	"software.sslmate.com/src/go-pkcs12"
)

// usersAt returns the users of a folder at a given time, in whole seconds as in certificates.
func usersAt(dir string, now time.Time) *Users {
	return OpenUsers(dir, clocktesting.NewFakePassiveClock(now))
}

func create(t *testing.T, u *Users, n NewUser) *Credentials {
	t.Helper()
	c, err := u.Create(n)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func list(t *testing.T, u *Users) []Certificate {
	t.Helper()
	all, err := u.List()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

func TestCreate_serverAcceptsCertificate(t *testing.T) {
	for name, first := range map[string]bool{"before the first start": true, "of a server that runs": false} {
		t.Run(name, func(t *testing.T) {
			dir, now := filepath.Join(t.TempDir(), "cert"), now()
			if !first {
				openAt(t, dir, now)
			}
			issued := create(t, usersAt(dir, now), NewUser{Name: "alice", Groups: []string{"on-call", "staff"}})
			server := openAt(t, dir, now)
			options, _ := server.ClientCA().VerifyOptions()
			if _, err := issued.cert.Verify(options); err != nil {
				t.Fatal(err)
			}
			if got := issued.cert.Subject; got.CommonName != "alice" ||
				!slices.Equal(slices.Sorted(slices.Values(got.Organization)), []string{"on-call", "staff"}) {
				t.Errorf("the certificate is of %s", got)
			}
			if want := now.Add(leafLife); !issued.Expires().Equal(want) {
				t.Errorf("it expires at %s, not %s", issued.Expires(), want)
			}
			for name, mode := range map[string]fs.FileMode{"users": fs.ModeDir | 0o700, "ca.key": 0o600} {
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode() != mode {
					t.Errorf("%s has mode %s", name, info.Mode())
				}
			}
			entries, err := os.ReadDir(filepath.Join(dir, "users"))
			if err != nil || len(entries) != 1 {
				t.Fatalf("users holds %v: %v", entries, err)
			}
			kept, err := os.ReadFile(filepath.Join(dir, "users", entries[0].Name()))
			if err != nil || !bytes.Equal(kept, issued.certPEM) {
				t.Errorf("the copy is no copy, or has the key: %v\n%s", err, kept)
			}
		})
	}
}

func TestList(t *testing.T) {
	dir, start := t.TempDir(), now()
	openAt(t, dir, start)
	short := create(
		t,
		usersAt(dir, start.Add(time.Hour)),
		NewUser{Name: "bob", Groups: []string{"long-term-guests", "bobs"}, Lifetime: time.Hour},
	)
	first := create(t, usersAt(dir, start), NewUser{Name: "alice"})
	second := create(t, usersAt(dir, start.Add(time.Minute)), NewUser{Name: "alice"})
	got := list(t, usersAt(dir, start.Add(3*time.Hour)))
	if len(got) != 4 {
		t.Fatalf("listed: %+v", got)
	}
	want := []Certificate{
		{Name: "alice", Groups: []string{}, Serial: first.Serial(), Issued: start, Expires: start.Add(leafLife), State: Valid},
		{
			Name:    "alice",
			Groups:  []string{},
			Serial:  second.Serial(),
			Issued:  start.Add(time.Minute),
			Expires: start.Add(leafLife + time.Minute),
			State:   Valid,
		},
		{Name: AdminUser, Groups: []string{AdminGroup}, Serial: got[2].Serial, Issued: start, Expires: start.Add(leafLife), State: Valid},
		{
			Name:    "bob",
			Groups:  []string{"bobs", "long-term-guests"},
			Serial:  short.Serial(),
			Issued:  start.Add(time.Hour),
			Expires: start.Add(2 * time.Hour),
			State:   Expired,
		},
	}
	for i := range got {
		got[i].cert = nil
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("listed: %+v\nnot    %+v", got, want)
	}

	// The authority is lost and created again.
	for _, name := range []string{"ca.crt", "ca.key", "server.crt", "server.key", "admin.crt", "admin.key"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := usersAt(dir, start).List(); !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), dir) {
		t.Errorf("without an authority: %v", err)
	}
	openAt(t, dir, start)
	for _, c := range list(t, usersAt(dir, start)) {
		if (c.State == Foreign) != (c.Name != AdminUser) {
			t.Errorf("of %s under another authority: %s", c.Name, c.State)
		}
	}

	if err := os.WriteFile(filepath.Join(dir, "users", "x.crt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := usersAt(dir, start).List(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "users", "x.crt")) {
		t.Errorf("a copy that is none: %v", err)
	}
}

func TestCreate_invalidUser(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "cert"), now()
	for name, test := range map[string]struct {
		user NewUser
		want string
	}{
		"no name":                 {NewUser{}, "user name is empty"},
		"a control character":     {NewUser{Name: "al\nice"}, `user name "al\nice" has non-printable characters`},
		"an invisible character":  {NewUser{Name: "al\u200bice"}, "non-printable characters"},
		"no UTF-8":                {NewUser{Name: "al\xffice"}, "is not UTF-8"},
		"a space before the name": {NewUser{Name: " alice"}, "begins or ends with a space"},
		"a long name":             {NewUser{Name: strings.Repeat("é", 65)}, "has 65 characters; a certificate holds at most 64 (RFC 5280)"},
		"a part of the system":    {NewUser{Name: "system:admin"}, "names that begin with system:"},
		"the administrator":       {NewUser{Name: AdminUser}, "is reserved for the administrator"},
		"an empty group":          {NewUser{Name: "alice", Groups: []string{""}}, "NewUser.Groups is empty"},
		"a long group":            {NewUser{Name: "alice", Groups: []string{strings.Repeat("g", 65)}}, "at most 64"},
		"a group twice":           {NewUser{Name: "alice", Groups: []string{"a", "b", "a"}}, `NewUser.Groups "a" is set twice`},
		"a group of the system": {NewUser{Name: "alice", Groups: []string{"system:nodes"}}, "the only allowed group that begins " +
			"with system: is system:masters"},
		"a negative life":               {NewUser{Name: "alice", Lifetime: -1}, "NewUser.Lifetime -1ns is negative"},
		"a life beyond the authority's": {NewUser{Name: "alice", Lifetime: authorityLife + time.Hour}, "use at most 87600h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := usersAt(dir, now).Create(test.user)
			if !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, not %q", err, test.want)
			}
		})
	}
	if all := list(t, usersAt(dir, now)); len(all) != 0 {
		t.Errorf("left behind: %+v", all)
	}
	create(t, usersAt(dir, now), NewUser{Name: strings.Repeat("é", 64), Groups: []string{AdminGroup}, Lifetime: authorityLife})
}

// Processes that start at the same time agree on one authority, which the server uses as well.
func TestCreate_concurrent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cert")
	issued := make([]*Credentials, 16)
	var wg sync.WaitGroup
	for i := range issued {
		wg.Go(func() {
			var err error
			if issued[i], err = OpenUsers(dir, nil).Create(NewUser{Name: "alice"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, err := Open(t.Context(), Options{Dir: dir}); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	options, _ := open(t, Options{Dir: dir}).ClientCA().VerifyOptions()
	for _, c := range issued {
		if _, err := c.cert.Verify(options); err != nil {
			t.Error(err)
		}
	}
	if all := list(t, OpenUsers(dir, nil)); len(all) != len(issued)+1 {
		t.Errorf("%d certificates are listed", len(all))
	}
}

func TestServerOf(t *testing.T) {
	dir := t.TempDir()
	c := open(t, Options{Dir: dir})
	path := filepath.Join(dir, "kubeconfig")
	if err := c.WriteKubeconfig(path, "shop", "https://127.0.0.1:8443"); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for name, test := range map[string]struct{ path, name, address, want, refusal string }{
		"the administrator's":                {path, "shop", "", "https://127.0.0.1:8443", ""},
		"another URL":                        {path, "shop", "https://shop.example.com", "https://shop.example.com", ""},
		"a URL without a kubeconfig":         {missing, "shop", "https://shop.example.com", "https://shop.example.com", ""},
		"neither":                            {missing, "shop", "", "", "unknown URL of shop, because its kubeconfig"},
		"no data directory":                  {"", "shop", "", "", "unknown URL of shop, because its kubeconfig"},
		"a kubeconfig of another server":     {path, "other", "", "", "unknown URL of other, because its kubeconfig"},
		"plain HTTP":                         {path, "shop", "http://shop.example.com", "", "NewUser.Server"},
		"no host":                            {path, "shop", "https://", "", "NewUser.Server"},
		"no URL":                             {path, "shop", "https://[", "", "NewUser.Server"},
		"a user in the URL":                  {path, "shop", "https://a@shop", "", "NewUser.Server"},
		"what is no kubeconfig is no user's": {broken, "shop", "https://shop.example.com", "", "read kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ServerOf(test.path, test.name, test.address)
			if test.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), test.refusal) {
					t.Errorf("%v, not %q", err, test.refusal)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := create(t, OpenUsers(dir, nil), NewUser{Name: "alice"}).Kubeconfig("shop", got)
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.RESTConfigFromKubeConfig(data)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != test.want || !bytes.Equal(config.CAData, c.authority.certPEM) {
				t.Errorf("it says %s, with %s", config.Host, config.CAData)
			}
		})
	}
}

// If the server has a certificate of a foreign authority, users verify it as the administrator's kubeconfig does.
func TestCredentials_kubeconfigReachesServer(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		options := Options{Dir: filepath.Join(t.TempDir(), "cert")}
		if foreign {
			other := t.TempDir()
			openAt(t, other, time.Now(), "shop.example.com")
			options.CertFile, options.KeyFile = filepath.Join(other, "server.crt"), filepath.Join(other, "server.key")
		}
		c := open(t, options)
		address := serve(t, c)
		path := filepath.Join(options.Dir, "kubeconfig")
		if err := c.WriteKubeconfig(path, "shop", ServerURL(address.IP, address.Port)); err != nil {
			t.Fatal(err)
		}
		server, err := ServerOf(path, "shop", "")
		if err != nil {
			t.Fatal(err)
		}
		data, err := create(t, OpenUsers(options.Dir, nil), NewUser{Name: "alice"}).Kubeconfig("shop", server)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := get(t, config); !strings.Contains(got, "alice") {
			t.Errorf("the server sees %q", got)
		}
	}
}

func TestPKCS12(t *testing.T) {
	issued := create(t, OpenUsers(t.TempDir(), nil), NewUser{Name: "alice"})
	if _, err := issued.PKCS12(""); !errors.As(err, new(Refusal)) {
		t.Errorf("an empty password: %v", err)
	}
	data, err := issued.PKCS12("påss word")
	if err != nil {
		t.Fatal(err)
	}
	key, cert, authorities, err := pkcs12.DecodeChain(data, "påss word")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(key, issued.key) || !cert.Equal(issued.cert) || len(authorities) != 1 ||
		!authorities[0].Equal(issued.authority.cert) {
		t.Errorf("it holds %v, %v", cert.Subject, authorities)
	}
	if _, _, _, err := pkcs12.DecodeChain(data, "password"); err == nil {
		t.Error("another password decrypts it")
	}

	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	file := filepath.Join(t.TempDir(), "alice.p12")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(openssl, "pkcs12", "-in", file, "-passin", "pass:påss word", "-nodes").CombinedOutput()
	if err != nil || strings.Count(string(out), "BEGIN CERTIFICATE") != 2 || !strings.Contains(string(out), "BEGIN PRIVATE KEY") {
		t.Errorf("openssl: %v\n%s", err, out)
	}
}

func TestPEM(t *testing.T) {
	issued := create(t, OpenUsers(t.TempDir(), nil), NewUser{Name: "alice"})
	both, err := parsePair("one", "other", issued.PEM(), issued.PEM())
	if err != nil {
		t.Fatal(err)
	}
	if !both.cert.Equal(issued.cert) || both.cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("%v", both.cert)
	}
}
