package configfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"github.com/annexapi/annex/internal/testing/testwait"
)

const (
	authentication = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	authorization  = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
)

func TestDecode_invalidFile_errorHasPlace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, data, want string }{
		{"empty", "", "it is empty"},
		{"comments only", "# nothing\n", "it is empty"},
		{"no YAML", authentication + "jwt: [\n", "line "},
		{"another kind", "apiVersion: v1\nkind: Pod\n", `apiVersion "v1" and kind "Pod": must be apiserver.config.k8s.io/v1 or ` +
			`apiserver.config.k8s.io/v1beta1, and AuthenticationConfiguration`},
		{"another kind of the group", authorization, `kind "AuthorizationConfiguration"`},
		{"no object", "- a\n- b\n", `apiVersion "" and kind ""`},
		{"an old version", "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: AuthenticationConfiguration\n",
			`"apiserver.config.k8s.io/v1alpha1"`},
		{"two documents", authentication + "---\n" + authentication, "line 3: the file must have only one document"},
		{"an unknown field", authentication + "jwt:\n- issuer:\n    url: a\n    uri: b\n", `line 6: unknown field "jwt[0].issuer.uri"`},
		{"two unknown fields", authentication + "jwts: []\nanonymos: {}\n", `line 3: unknown field "jwts"; line 4: unknown field "anonymos"`},
		{"an unknown field in JSON", `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration",` + "\n" + `"jwts":[]}`,
			`line 2: unknown field "jwts"`},
		{"a field twice", authentication + "anonymous: {enabled: true}\nanonymous: {enabled: false}\n", "line 4: "},
		{"a text instead of an object", authentication + "jwt:\n- issuer: {url: a}\n- issuer: https://a\n", "line 5: jwt.issuer: string " +
			"instead of v1.Issuer"},
		{"an object instead of a list", authentication + "jwt:\n  issuer: {}\n", "line 4: jwt: object instead of []v1.JWTAuthenticator"},
		{"a text instead of a number", authentication + "anonymous:\n  enabled: maybe\n", "line 4: anonymous.enabled: string instead of bool"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode[apiserver.AuthenticationConfiguration]([]byte(test.data), "AuthenticationConfiguration")
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want a line with %s", err, test.want)
			}
		})
	}
	_, err := Decode[apiserver.AuthorizationConfiguration](
		[]byte(authorization+"authorizers:\n- type: Webhook\n  webhook:\n    timeout: soon\n"),
		"AuthorizationConfiguration",
	)
	if err == nil || !strings.Contains(err.Error(), `line 6: authorizers[0].webhook.timeout: time: invalid duration "soon"`) {
		t.Errorf("a duration: %v", err)
	}
}

func TestDecode_defaults(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta1"} {
		data := "apiVersion: apiserver.config.k8s.io/" + version + "\nkind: AuthorizationConfiguration\nauthorizers:\n- {type: Webhook, " +
			"name: a, webhook: {}}\n"
		parsed, err := Decode[apiserver.AuthorizationConfiguration]([]byte(data), "AuthorizationConfiguration")
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if w := parsed.Authorizers[0].Webhook; w.AuthorizedTTL.Minutes() != 5 || !w.CacheAuthorizedRequests {
			t.Errorf("%s: %+v", version, w)
		}
	}
}

func TestMistakes_lineOfInnermostField(t *testing.T) {
	t.Parallel()
	data := []byte("jwt:\n- issuer:\n    url: http://a\n- issuer:\n    url: https://b\n  claimMappings:\n    username: {}\n")
	root := field.NewPath("jwt")
	err := Mistakes(data, field.ErrorList{
		field.Invalid(root.Index(0).Child("issuer", "url"), "http://a", "URL scheme\nmust be https"),
		field.Required(root.Index(1).Child("issuer", "audiences"), ""),
		field.Required(root.Index(1).Child("claimMappings", "username", "claim"), ""),
		field.TooMany(field.NewPath("elsewhere"), 2, 1),
	})
	want := []string{
		`line 3: jwt[0].issuer.url: Invalid value: "http://a": URL scheme must be https`,
		`line 4: jwt[1].issuer.audiences: Required value`,
		`line 7: jwt[1].claimMappings.username.claim: Required value`,
		`line 1: elsewhere: Too many`,
	}
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v", err)
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("no %s in %v", text, err)
		}
	}
	if err := Mistakes(data, nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

func TestFile_Run_appliesChangesOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var used, reloaded []string
	refused := 0
	f := &File{What: "Configuration", Path: path,
		Use: func(_ context.Context, data []byte) error {
			if string(data) == "bad" {
				return errors.New("it is bad")
			}
			used = append(used, string(data))
			return nil
		},
		Reloaded: func(data string) { reloaded = append(reloaded, data) },
		Refused:  func() { refused++ },
	}
	if _, err := f.Open(t.Context()); !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	replace("bad")
	if _, err := f.Open(t.Context()); err == nil {
		t.Error("a bad file was opened")
	}
	replace("one")
	if data, err := f.Open(t.Context()); err != nil || data != "one" {
		t.Fatalf("%q, %v", data, err)
	}
	for _, step := range []struct {
		content string
		fails   bool
		refused int
		used    string
	}{
		{"one", false, 0, "one"},
		{"bad", true, 1, "one"},
		{"bad", true, 1, "one"},
		{"two", false, 1, "one two"},
		{"bad", true, 2, "one two"},
		{"two", false, 2, "one two"}, // the content in force is unchanged
		{"bad", true, 3, "one two"},
	} {
		replace(step.content)
		if err := f.reload(t.Context()); (err != nil) != step.fails {
			t.Errorf("%s: %v", step.content, err)
		}
		if got := strings.Join(used, " "); got != step.used || refused != step.refused {
			t.Errorf("after %s: used %s, refused %d", step.content, got, refused)
		}
	}
	if len(reloaded) != 1 || reloaded[0] != "two" {
		t.Errorf("reloaded %q", reloaded)
	}

	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan struct{})
	f.Reloaded = func(string) { close(seen) }
	replace("three")
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	testwait.Until(t, "the change is seen", func() bool {
		select {
		case <-seen:
			return true
		default:
			return false
		}
	})
	cancel()
	<-done
}
