package console

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func handlers(t *testing.T) (console, swagger http.Handler) {
	t.Helper()
	config := Config{
		Title:   "Shop <&>",
		Version: "v1.2.0",
		Query:   "/query",
		Swagger: SwaggerPath,
		Console: Path,
		Login:   &Login{Password: true, Providers: []Provider{{"corp", "Corp"}}},
	}
	console, err := Console(config, []byte("<svg/>"), "image/svg+xml")
	if err != nil {
		t.Fatal(err)
	}
	swagger, err = SwaggerUI(config)
	if err != nil {
		t.Fatal(err)
	}
	return console, swagger
}

func ask(h http.Handler, method, path string, header ...string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

var asset = regexp.MustCompile(`assets/[^"]+`)

func TestPages_assetsExist(t *testing.T) {
	console, swagger := handlers(t)
	for prefix, h := range map[string]http.Handler{Path: console, SwaggerPath: swagger} {
		r := ask(h, "GET", prefix)
		page := body(t, r)
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Fatalf("%s: %d, %s", prefix, r.StatusCode, r.Header.Get("Content-Type"))
		}
		named := asset.FindAllString(page, -1)
		if len(named) < 2 {
			t.Fatalf("%s names %q", prefix, named)
		}
		for _, name := range named {
			r := ask(h, "GET", prefix+name)
			if r.StatusCode != http.StatusOK || len(body(t, r)) == 0 {
				t.Errorf("%s%s: %d", prefix, name, r.StatusCode)
			}
			if got := r.Header.Get("Cache-Control"); got != "public, max-age=31536000, immutable" {
				t.Errorf("%s%s: Cache-Control %q", prefix, name, got)
			}
		}
		for _, never := range []string{"//", "<style", "style=", " on", "javascript:"} {
			if strings.Contains(strings.ReplaceAll(page, "<!doctype html>", ""), never) {
				t.Errorf("%s has %q:\n%s", prefix, never, page)
			}
		}
		if scripts := regexp.MustCompile(`<script[^>]*>[^<]`).FindString(page); scripts != "" {
			t.Errorf("%s has a script in its markup: %s", prefix, scripts)
		}
	}
}

func TestPages_securityHeaders(t *testing.T) {
	console, swagger := handlers(t)
	for _, request := range []struct {
		h            http.Handler
		method, path string
		want         int
	}{
		{console, "GET", Path, 200}, {console, "HEAD", Path, 200}, {console, "GET", Path + "config.json", 200},
		{console, "GET", Path + "logo", 200},
		{console, "GET", Path + "licenses.txt", 200}, {console, "GET", Path + "missing", 404}, {console, "POST", Path, 405},
		{console, "DELETE", Path + "config.json", 405},
		{console, "OPTIONS", Path, 405}, {console, "GET", Path + "index.html.gz", 404}, {console, "GET", Path + "assets/", 404},
		{console, "GET", "/elsewhere", 404},
		{console, "GET", Path + "../swagger-ui/index.html", 404}, {console, "GET", Path + "..%2f..%2fconsole.go", 404},
		{console, "GET", Path + "%2e%2e/console.go", 404},
		{console, "GET", Path + "assets/../../../console.go", 404}, {console, "GET", Path + "logo/x", 404},
		{console, "GET", Path + "index.html%00", 404},
		{swagger, "GET", SwaggerPath, 200}, {swagger, "GET", SwaggerPath + "config.json", 200}, {swagger, "GET", SwaggerPath + "logo", 404},
		{swagger, "PUT", SwaggerPath, 405},
	} {
		r := ask(request.h, request.method, request.path)
		if r.StatusCode != request.want {
			t.Errorf("%s %s: %d, want %d", request.method, request.path, r.StatusCode, request.want)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
				"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s %s: %s is %q", request.method, request.path, name, got)
			}
		}
		if r.StatusCode == http.StatusMethodNotAllowed && r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", request.method, request.path, r.Header.Get("Allow"))
		}
		if text := body(t, r); request.method == "HEAD" && text != "" {
			t.Errorf("HEAD %s has a body of %d bytes", request.path, len(text))
		}
	}
}

func TestConsole_configJSON(t *testing.T) {
	console, _ := handlers(t)
	r := ask(console, "GET", Path+"config.json")
	var told Config
	if err := json.Unmarshal([]byte(body(t, r)), &told); err != nil {
		t.Fatal(err)
	}
	if told.Title != "Shop <&>" || told.Logo != Path+"logo" || told.Query != "/query" || !told.Login.Password ||
		r.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%+v, Cache-Control %q", told, r.Header.Get("Cache-Control"))
	}
	if logo := ask(console, "GET", Path+"logo"); logo.Header.Get("Content-Type") != "image/svg+xml" || body(t, logo) != "<svg/>" {
		t.Errorf("the logo is %s", logo.Header.Get("Content-Type"))
	}
}

func TestPages_gzip(t *testing.T) {
	console, _ := handlers(t)
	plain := body(t, ask(console, "GET", Path))
	for accepted, want := range map[string]bool{
		"gzip": true, "GZip": true, "br, gzip;q=0.5": true, "*": true, "deflate, *;q=0.1": true,
		"": false, "br": false, "gzip;q=0": false, "gzip; q=0.000": false, "*;q=0": false, "identity": false, "xgzip": false,
	} {
		r := ask(console, "GET", Path, "Accept-Encoding", accepted)
		compressed := r.Header.Get("Content-Encoding") == "gzip"
		if compressed != want || r.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: compressed %t, Vary %q", accepted, compressed, r.Header.Get("Vary"))
		}
		var reader io.Reader = r.Body
		if compressed {
			var err error
			if reader, err = gzip.NewReader(r.Body); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := io.ReadAll(reader); err != nil || string(all) != plain {
			t.Errorf("%q: another page, %v", accepted, err)
		}
	}
}

func TestPages_notModified(t *testing.T) {
	console, _ := handlers(t)
	seen := map[string]bool{}
	for _, encoding := range []string{"gzip", "identity"} {
		etag := ask(console, "GET", Path, "Accept-Encoding", encoding).Header.Get("ETag")
		if etag == "" || seen[etag] {
			t.Fatalf("%s: ETag %q", encoding, etag)
		}
		seen[etag] = true
		again := ask(console, "GET", Path, "Accept-Encoding", encoding, "If-None-Match", etag)
		if text := body(t, again); again.StatusCode != http.StatusNotModified || text != "" {
			t.Errorf("%s: %d and %d bytes", encoding, again.StatusCode, len(text))
		}
		if other := ask(console, "GET", Path, "Accept-Encoding", encoding, "If-None-Match", `"other"`); other.StatusCode != http.StatusOK {
			t.Errorf("%s: %d for another ETag", encoding, other.StatusCode)
		}
	}
}

// The console must load fast, even over slow connections. Swagger UI is a separate page.
func TestConsole_size(t *testing.T) {
	const most = 500_000
	size := 0
	err := fs.WalkDir(dist, "dist/console", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			var content []byte
			content, err = dist.ReadFile(name)
			size += len(content)
			if gunzip(content) == nil {
				t.Errorf("%s is damaged", name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if size == 0 || size > most {
		t.Errorf("the console has %d bytes, and may have %d", size, most)
	}
}

func TestPages_licences(t *testing.T) {
	console, _ := handlers(t)
	text := body(t, ask(console, "GET", Path+"licenses.txt"))
	for _, name := range []string{"@xterm/xterm", "preact", "swagger-ui-dist", "yaml", "Permission is hereby granted", "Apache License"} {
		if !strings.Contains(text, name) {
			t.Errorf("the licences lack %s", name)
		}
	}
}

func TestPages_damagedFile(t *testing.T) {
	f := file{content: []byte("no gzip"), gzipped: true, mediaType: "text/html", etag: "x"}
	w := httptest.NewRecorder()
	f.serve(w, httptest.NewRequest("GET", Path, nil))
	if w.Code != http.StatusInternalServerError || bytes.Contains(w.Body.Bytes(), f.content) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
