// Package console serves two single-page applications that work with any server: the console, which shows and edits
// the objects of all kinds, and Swagger UI, which shows the OpenAPI documents and sends requests.
//
// The pages are static files without secrets, the same for all users. Their scripts read and write through the API,
// with the permissions of the signed-in user. make console builds the pages from web; the binary embeds them
// compressed.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// The paths of the pages.
const (
	Path        = "/console/"
	SwaggerPath = "/swagger-ui/"
)

// SignInPath returns the path of a one-time link for signing in. The secret is in the fragment, which browsers send to no
// server.
func SignInPath(secret string) string { return Path + "#/sign-in/" + secret }

//go:embed dist
var dist embed.FS

// Config is the server's configuration as the pages read it, from config.json.
type Config struct {
	Title   string `json:"title"`
	Logo    string `json:"logo,omitempty"`
	Version string `json:"version"`
	// Query is the prefix of the query API, Swagger the path of Swagger UI; an empty value means that it is not
	// served.
	Query   string `json:"query,omitempty"`
	Swagger string `json:"swagger,omitempty"`
	// Console is the path of the console, for the link in Swagger UI; empty if it is not served.
	Console string `json:"console,omitempty"`
	// Login is nil if users cannot sign in at the server.
	Login *Login `json:"login,omitempty"`
	// Requests is the path of the requests of the server; empty if it keeps none.
	Requests string `json:"requests,omitempty"`
	// Link is the command that prints a one-time link for signing in; empty if the server accepts none.
	Link string `json:"link,omitempty"`
	// LoginNow, if set, returns the value of Login for each request.
	LoginNow func() *Login `json:"-"`
	// ClientCertificate is set if the server accepts client certificates.
	ClientCertificate bool `json:"clientCertificate"`
}

// Login describes the ways to sign in.
type Login struct {
	Password  bool       `json:"password"`
	Providers []Provider `json:"providers,omitempty"`
}

// Provider is an OpenID Connect provider where users can sign in.
type Provider struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

// Console returns the handler of Path. The logo may be empty; logoType is its media type.
func Console(config Config, logo []byte, logoType string) (http.Handler, error) {
	files, err := load("console")
	if err != nil {
		return nil, err
	}
	if len(logo) > 0 {
		config.Logo = Path + "logo"
		files["logo"] = plain(logo, logoType)
	}
	return newPages(Path, files, config)
}

// SwaggerUI returns the handler of SwaggerPath.
func SwaggerUI(config Config) (http.Handler, error) {
	files, err := load("swagger-ui")
	if err != nil {
		return nil, err
	}
	return newPages(SwaggerPath, files, config)
}

func newPages(prefix string, files map[string]file, config Config) (http.Handler, error) {
	p := &pages{prefix: prefix, files: files, config: config}
	_, err := p.configFile()
	return p, err
}

// policy lets pages load resources from the server alone, and forbids inline scripts and styles.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// file is a served file. It is held either plain or compressed, since each form can be computed from the other.
type file struct {
	content   []byte // compressed if gzipped
	embedded  string // its name in dist, instead of content: rarely requested files are not copied to the heap
	gzipped   bool
	mediaType string
	etag      string
	immutable bool
}

func plain(content []byte, mediaType string) file {
	return file{content: content, mediaType: mediaType, etag: etagOf(content)}
}

func etagOf(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:15])
}

// load reads the files of a page. The keys are paths relative to the page's prefix.
func load(page string) (map[string]file, error) {
	files := map[string]file{}
	root := "dist/" + page
	err := fs.WalkDir(dist, root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		below := strings.TrimSuffix(strings.TrimPrefix(name, root+"/"), ".gz")
		files[below] = file{
			embedded:  name,
			gzipped:   true,
			mediaType: mediaTypes[path.Ext(below)],
			etag:      etagOf(content),
			immutable: strings.HasPrefix(below, "assets/"),
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	const name = "dist/LICENSES.txt.gz"
	licences, err := dist.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	files["licenses.txt"] = file{embedded: name, gzipped: true, mediaType: mediaTypes[".txt"], etag: etagOf(licences)}
	return files, nil
}

// mediaTypes is explicit because the operating system's table may differ.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".txt":  "text/plain; charset=utf-8",
}

// pages serves the files of one page below a prefix.
type pages struct {
	prefix string
	files  map[string]file // by name, without config.json
	config Config
}

// The file config.json: the configuration of the page, with the ways to sign in at this moment.
func (p *pages) configFile() (file, error) {
	config := p.config
	if config.LoginNow != nil {
		config.Login = config.LoginNow()
	}
	content, err := json.Marshal(config)
	if err != nil {
		return file{}, fmt.Errorf("the configuration of the page %s: %w", p.prefix, err)
	}
	return plain(content, "application/json"), nil
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "pages are only read", http.StatusMethodNotAllowed)
		return
	}
	name, below := strings.CutPrefix(r.URL.Path, p.prefix)
	if name == "" {
		name = "index.html"
	}
	f, ok := p.files[name]
	if name == "config.json" {
		content, err := p.configFile()
		f, ok = content, err == nil
	}
	if !ok || !below {
		http.Error(w, "page not found", http.StatusNotFound)
		return
	}
	f.serve(w, r)
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", f.mediaType)
	// Files whose names contain a hash of their content never change. Browsers revalidate all others, which costs a
	// response without a body.
	header.Set("Cache-Control", "no-cache")
	if f.immutable {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content, etag := f.content, f.etag
	if f.embedded != "" {
		content, _ = dist.ReadFile(f.embedded) // load has read this file already, so it cannot fail
	}
	if f.gzipped {
		header.Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header.Values("Accept-Encoding")) {
			header.Set("Content-Encoding", "gzip")
			etag += "-gzip"
		} else if content = gunzip(content); content == nil {
			http.Error(w, "the page is damaged", http.StatusInternalServerError)
			return
		}
	}
	header.Set("ETag", `"`+etag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reports whether Accept-Encoding names gzip or * with a weight other than 0.
func acceptsGzip(values []string) bool {
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			coding, parameters, _ := strings.Cut(one, ";")
			coding = strings.TrimSpace(coding)
			if coding != "*" && !strings.EqualFold(coding, "gzip") {
				continue
			}
			weight := strings.TrimPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
			return strings.Trim(weight, "0.") != "" || weight == ""
		}
	}
	return false
}

// gunzip serves the few clients that do not accept gzip; it returns nil if the content is damaged.
func gunzip(content []byte) []byte {
	reader, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil
	}
	all, err := io.ReadAll(reader)
	if err != nil {
		return nil
	}
	return all
}
