package login

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestUserFile_invalidContent(t *testing.T) {
	t.Parallel()
	hash := cheap(t, "x")
	user := "users:\n- {name: a, uid: '1', password: " + hash + "}\n"
	for name, test := range map[string]struct{ data, want string }{
		"no YAML":               {"{", "user file"},
		"an unknown field":      {"people: []", "people"},
		"no name":               {"users: [{uid: '1', password: " + hash + "}]", "users[0]: name is empty"},
		"a name of the system":  {"users: [{name: 'system:admin'}]", "names that begin with system:"},
		"a client's name":       {"users: [{name: 'client:ci'}]", "names that begin with system: or client:"},
		"a space":               {"users: [{name: ' a'}]", "begins or ends with a space"},
		"a line break":          {`users: [{name: "a\nb"}]`, "non-printable characters"},
		"no UID":                {"users: [{name: a, password: " + hash + "}]", `user "a": uid is empty`},
		"a UID twice":           {user + "- {name: b, uid: '1', password: " + hash + "}", "is another user's"},
		"a name twice":          {user + "- {name: a, uid: '2', password: " + hash + "}", "duplicate"},
		"no hash":               {"users: [{name: a, uid: '1'}]", "not a bcrypt hash"},
		"a password":            {"users: [{name: a, uid: '1', password: secret}]", "not a bcrypt hash"},
		"a cut hash":            {"users: [{name: a, uid: '1', password: " + hash[:59] + "}]", "not a bcrypt hash"},
		"an expensive hash":     {"users: [{name: a, uid: '1', password: " + strings.Replace(hash, "$04$", "$31$", 1) + "}]", "the cost 31"},
		"a group of the system": {"users: [{name: a, uid: '1', password: " + hash + ", groups: ['system:nodes']}]", "is system:masters"},
		"a group twice":         {"users: [{name: a, uid: '1', password: " + hash + ", groups: [x, x]}]", "set twice"},
		"a client twice":        {"clients: [{id: a}, {id: a}]", "duplicate"},
		"groups, no secret":     {"clients: [{id: a, groups: [x]}]", "only clients with a secret"},
		"http elsewhere":        {"clients: [{id: a, redirectURIs: ['http://example.com/x']}]", "redirect URI"},
		"a script":              {"clients: [{id: a, redirectURIs: ['javascript:alert(1)']}]", "redirect URI"},
		"a fragment":            {"clients: [{id: a, redirectURIs: ['https://example.com/x#y']}]", "redirect URI"},
		"a provider's issuer":   {"providers: [{name: a, issuer: 'http://example.com', clientID: x}]", "is not an https URL"},
		"no clientID":           {"providers: [{name: a, issuer: 'https://example.com'}]", "clientID is empty"},
		"a provider twice": {"providers: [{name: a, issuer: 'https://example.com', clientID: x}, {name: a, issuer: " +
			"'https://example.com', clientID: x}]", "duplicate"},
		"no openid":      {"providers: [{name: a, issuer: 'https://example.com', clientID: x, scopes: [email]}]", "lack openid"},
		"a relative one": {"clients: [{id: a, redirectURIs: ['/x']}]", "redirect URI"},
	} {
		path := filepath.Join(t.TempDir(), "users")
		if err := os.WriteFile(path, []byte(test.data), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenUserFile(path, true, false)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), hash) {
			t.Errorf("%s: the error holds the hash: %v", name, err)
		}
	}
}

func TestUserFile_readableByOthers_isRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, nil, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenUserFile(path, true, false); err == nil || !strings.Contains(err.Error(), "chmod it to 600") {
		t.Errorf("opened: %v", err)
	}
}

func TestEdit_concurrent(t *testing.T) {
	t.Parallel()
	path, hash := filepath.Join(t.TempDir(), "users"), cheap(t, "x")
	names := []string{"a", "b", "c", "d", "e", "f"}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if err := Edit(t.Context(), path, func(f *File) error {
				_, err := f.SetPassword(name, hash, []string{"staff"})
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := ReadUsers(path)
	if err != nil || len(f.Users) != len(names) {
		t.Fatalf("%+v, %v", f, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	uid := f.User("a").UID
	if err := Edit(t.Context(), path, func(f *File) error {
		f.User("a").Disabled = true
		made, err := f.SetPassword("a", hash, nil)
		if made {
			t.Error("a was made again")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if f, err = ReadUsers(path); err != nil || f.User("a").UID != uid || f.User("a").Disabled || len(f.User("a").Groups) != 1 {
		t.Errorf("%+v, %v", f.User("a"), err)
	}
}

func TestHash_length(t *testing.T) {
	t.Parallel()
	for password, want := range map[string]string{"short": "at least 8", strings.Repeat("x", 73): "maximum of 72", "1234567": "7 characters"} {
		if _, err := Hash(password); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", password, err)
		}
	}
}
