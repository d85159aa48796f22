package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/annexapi/annex/program"
)

// running is a running program, with its objects in a folder of its own.
type running struct {
	t       *testing.T
	data    string
	url     string // of plain HTTP
	cmd     *exec.Cmd
	said    *output
	stopped bool
}

// output collects a program's output, and may be read concurrently.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts the program and returns when it prints a line.
func start(t *testing.T, args ...string) (*running, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	p := &running{t: t, cmd: cmd, said: &output{}}
	cmd.Stderr = p.said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	hung := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	reader := bufio.NewReader(stdout)
	line, err := reader.ReadString('\n')
	if err != nil {
		p.kill()
		t.Fatalf("%v ended: %s", args, p.said)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }() // ends with the program
	return p, line
}

// kill kills the program.
func (p *running) kill() {
	if !p.stopped {
		p.stopped = true
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// serving starts a server with flags, with this test as its administrator.
func serving(t *testing.T, flags ...string) *running {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	insecure := free(t)
	_, port, _ := net.SplitHostPort(insecure)
	p, _ := start(
		t,
		append([]string{"serve", "--data-dir", data, "--secure-port", "0", "--insecure-port", port, "--authn-allow-localhost"}, flags...)...)
	p.data, p.url = data, "http://"+insecure
	return p
}

// free returns an address on which nothing listens now.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

const (
	group  = "/apis/restaurant.wukong.com/"
	pizzas = group + "v1beta1/namespaces/default/pizzas"
)

// do sends a request and returns the answer.
func (p *running) do(method, path string, body any, headers ...string) (int, map[string]any) {
	p.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, bytes.NewReader(encoded))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", method, path, err, p.said)
	}
	defer response.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		p.t.Fatalf("%s %s: %s: %v", method, path, response.Status, err)
	}
	return response.StatusCode, answer
}

// want sends a request, and expects a code and a text in the answer.
func (p *running) want(code int, text, method, path string, body any, headers ...string) map[string]any {
	p.t.Helper()
	got, answer := p.do(method, path, body, headers...)
	if encoded, _ := json.Marshal(answer); got != code || !strings.Contains(string(encoded), text) {
		p.t.Fatalf("%s %s: %d, want %d with %s: %s", method, path, got, code, text, encoded)
	}
	return answer
}

func (p *running) topping(name string, cost float64) {
	p.t.Helper()
	p.want(201, name, "POST", group+"v1beta1/toppings", map[string]any{
		"apiVersion": "restaurant.wukong.com/v1beta1",
		"kind":       "Topping",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"cost": cost},
	})
}

func pizza(name string, toppings ...any) map[string]any {
	return map[string]any{
		"apiVersion": "restaurant.wukong.com/v1beta1",
		"kind":       "Pizza",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"toppings": toppings},
	}
}

func portion(name string, quantity int) map[string]any {
	return map[string]any{"name": name, "quantity": quantity}
}

// becomes waits until the answer to a request contains a text.
func (p *running) becomes(path, text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	var answer map[string]any
	for ctx.Err() == nil {
		_, answer = p.do("GET", path, nil)
		if encoded, _ := json.Marshal(answer); strings.Contains(string(encoded), text) {
			return
		}
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
	p.t.Fatalf("%s never had %s: %v", path, text, answer)
}

func TestPizza_versions(t *testing.T) {
	t.Parallel()
	p := serving(t, "--storage=memory")
	for _, name := range []string{"salami", "mozzarella", "tomato"} {
		p.topping(name, 1)
	}
	old := pizza("old")
	old["apiVersion"], old["spec"] = "restaurant.wukong.com/v1alpha1", map[string]any{"toppings": []string{"tomato", "salami", "tomato"}}
	p.want(201, `"toppings":["tomato","tomato","salami"]`, "POST", group+"v1alpha1/namespaces/default/pizzas", old)
	p.want(200, `"toppings":[{"name":"tomato","quantity":2},{"name":"salami","quantity":1}]`, "GET", pizzas+"/old", nil)
	// Missing toppings are defaulted.
	p.want(
		201,
		`"toppings":[{"name":"salami","quantity":1},{"name":"mozzarella","quantity":1},{"name":"tomato","quantity":1}]`,
		"POST",
		pizzas,
		pizza("plain"),
	)
	p.want(200, `"toppings":["salami","mozzarella","tomato"]`, "GET", group+"v1alpha1/namespaces/default/pizzas/plain", nil)
	old["metadata"], old["spec"] = map[string]any{"name": "older"}, map[string]any{}
	p.want(201, `"toppings":["salami","mozzarella","tomato"]`, "POST", group+"v1alpha1/namespaces/default/pizzas", old)
	p.want(201, `{"name":"tomato","quantity":1}`, "POST", pizzas, pizza("one", map[string]any{"name": "tomato"}))
	for name, test := range map[string]struct {
		code     int
		text     string
		toppings []any
	}{
		"unknown":  {403, `there is no topping \"pineapple\"`, []any{portion("tomato", 1), portion("pineapple", 1)}},
		"negative": {422, "spec.toppings[0].quantity", []any{portion("tomato", -1)}},
		"too much": {422, "spec.toppings[0].quantity", []any{portion("tomato", 101)}},
		"twice":    {422, "spec.toppings[1]", []any{portion("tomato", 1), portion("tomato", 2)}},
		"nameless": {422, "spec.toppings[0].name", []any{portion("", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			p.want(test.code, test.text, "POST", pizzas, pizza("bad", test.toppings...))
		})
	}
	var many []any
	for i := range 51 {
		many = append(many, portion(fmt.Sprint("t", i), 1))
	}
	p.want(422, "spec.toppings", "POST", pizzas, pizza("bad", many...))
	p.want(422, "must be greater than or equal to 0", "POST", group+"v1beta1/toppings", map[string]any{
		"apiVersion": "restaurant.wukong.com/v1beta1",
		"kind":       "Topping",
		"metadata":   map[string]any{"name": "x"},
		"spec":       map[string]any{"cost": -0.5},
	})
}

func TestPizzaController_priceChanges(t *testing.T) {
	t.Parallel()
	p := serving(t, "--storage=memory")
	p.topping("tomato", 0.5)
	p.topping("salami", 2)
	const n = 20
	for i := range n {
		p.want(201, "", "POST", pizzas, pizza(fmt.Sprint("p", i), portion("tomato", i+1)))
	}
	p.want(201, "", "POST", pizzas, pizza("other", portion("salami", 3)))
	p.becomes(pizzas+"/p19", `"cost":10`)
	p.want(
		200,
		"",
		"PATCH",
		group+"v1beta1/toppings/tomato",
		map[string]any{"spec": map[string]any{"cost": 3}},
		"Content-Type",
		"application/merge-patch+json",
	)
	for i := range n {
		p.becomes(pizzas+fmt.Sprint("/p", i), fmt.Sprintf(`"cost":%d`, 3*(i+1)))
	}
	p.becomes(pizzas+"/other", `"cost":6`)
	p.becomes("/apis/events.k8s.io/v1/namespaces/default/events", `"note":"it costs 60"`)
	// If a topping is removed, the pizza keeps its last price, and its condition reports the missing topping.
	p.want(200, "", "DELETE", group+"v1beta1/toppings/tomato", nil)
	p.becomes(pizzas+"/p0", `"reason":"ToppingMissing"`)
	p.becomes(pizzas+"/p0", `"cost":3`)
}

func TestFiles_editedFile_isWrite(t *testing.T) {
	t.Parallel()
	p := serving(t, "--backend=file")
	p.topping("tomato", 0.5)
	p.want(201, "", "POST", pizzas, pizza("edited", portion("tomato", 1)))
	p.becomes(pizzas+"/edited", `"cost":0.5`)
	path := filepath.Join(p.data, "objects", "restaurant.wukong.com", "toppings", "_cluster", "tomato.yaml")
	var text []byte
	until(t, "the file has the price", func() bool {
		var err error
		text, err = os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "cost: 0.5")
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+group+"v1beta1/toppings?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	if err := os.WriteFile(path, bytes.Replace(text, []byte("cost: 0.5"), []byte("cost: 0.75"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(watch.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Text(); strings.Contains(line, `"type":"MODIFIED"`) && strings.Contains(line, `"cost":0.75`) {
			p.becomes(pizzas+"/edited", `"cost":0.75`)
			return
		}
	}
	t.Errorf("the watch ended before the edit was seen: %v", lines.Err())
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !holds() {
		if ctx.Err() != nil {
			t.Fatalf("never: %s", what)
		}
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
}

// When the leading process is killed, another one takes the lead, and prices are updated under both.
func TestControllers_leaderKilled_anotherLeads(t *testing.T) {
	t.Parallel()
	p := serving(t, "--storage=memory", "--controllers=")
	p.topping("tomato", 1)
	p.want(201, "", "POST", pizzas, pizza("p", portion("tomato", 1)))
	controllers := []string{
		"controllers", "--kubeconfig", filepath.Join(p.data, "kubeconfig"),
		"--leader-elect-lease-duration", "2s", "--leader-elect-renew-deadline", "1500ms", "--leader-elect-retry-period", "200ms",
	}
	first, line := start(t, controllers...)
	if !strings.Contains(line, "runs controllers") {
		t.Fatalf("it says %q", line)
	}
	p.becomes(pizzas+"/p", `"cost":1`)
	next := make(chan *running, 1)
	go func() {
		second, _ := start(t, controllers...) // it prints when it leads
		next <- second
	}()
	const lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/restaurant-controllers"
	holder := func() string {
		_, answer := p.do("GET", lease, nil)
		spec, _ := answer["spec"].(map[string]any)
		return fmt.Sprint(spec["holderIdentity"])
	}
	before := holder()
	first.kill()
	<-next
	if now := holder(); now == before {
		t.Errorf("the Lease is still that of %s", now)
	}
	p.want(
		200,
		"",
		"PATCH",
		group+"v1beta1/toppings/tomato",
		map[string]any{"spec": map[string]any{"cost": 7}},
		"Content-Type",
		"application/merge-patch+json",
	)
	p.becomes(pizzas+"/p", `"cost":7`)
}

func TestMenu(t *testing.T) {
	t.Parallel()
	p := serving(t, "--storage=memory")
	askMenu(t, p)
}

func askMenu(t *testing.T, p *running) {
	t.Helper()
	p.topping("tomato", 0.5)
	ordered := p.want(
		201,
		`"toppings":["tomato","tomato"]`,
		"POST",
		"/wukong/menu/order",
		map[string]any{"namespace": "default", "toppings": []string{"tomato", "tomato"}},
	)
	p.becomes(pizzas+"/"+fmt.Sprint(ordered["name"]), `"cost":1`)
	p.want(200, fmt.Sprintf(`"name":%q`, ordered["name"]), "GET", "/wukong/menu?namespace=default", nil)
	p.want(200, `"items":[]`, "GET", "/wukong/menu?namespace=elsewhere", nil)
	p.want(403, `there is no topping \"pineapple\"`, "POST", "/wukong/menu/order", map[string]any{"toppings": []string{"pineapple"}})
	p.want(400, "want JSON", "POST", "/wukong/menu/order", []int{1})
	p.want(404, "", "GET", "/wukong/menu/nothing", nil)
	// The paths have the authorization of the API, and act as the caller.
	p.want(403, `cannot get path \"/wukong/menu\"`, "GET", "/wukong/menu", nil, "Impersonate-User", "guest")
	for _, object := range []map[string]any{
		{"kind": "ClusterRole", "rules": []any{map[string]any{"nonResourceURLs": []string{"/wukong/*"}, "verbs": []string{"get", "post"}}}},
		{"kind": "ClusterRoleBinding", "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
			"name": "guests"}, "subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "guest"}}},
	} {
		object["apiVersion"], object["metadata"] = "rbac.authorization.k8s.io/v1", map[string]any{"name": "guests"}
		p.want(201, "", "POST", "/apis/rbac.authorization.k8s.io/v1/"+strings.ToLower(fmt.Sprint(object["kind"]))+"s", object)
	}
	until(t, "the guest may see the path", func() bool {
		code, answer := p.do("GET", "/wukong/menu", nil, "Impersonate-User", "guest")
		return code == 403 && strings.Contains(fmt.Sprint(answer["message"]), `User "guest" cannot list resource "pizzas"`)
	})
	p.want(
		403,
		`User \"guest\" cannot create resource \"pizzas\"`,
		"POST",
		"/wukong/menu/order",
		map[string]any{"toppings": []string{"tomato"}},
		"Impersonate-User",
		"guest",
	)
	// The headers of a proxy name neither an administrator nor another caller.
	p.want(401, "Unauthorized", "GET", "/wukong/menu", nil, "X-Remote-User", "admin", "X-Remote-Group", "system:masters")
}

// The same paths, served by the process of the controllers.
func TestMenu_otherProcess(t *testing.T) {
	t.Parallel()
	address, secret := free(t), filepath.Join(t.TempDir(), "secret")
	p := serving(t, "--storage=memory", "--controllers=", "--apiext-url", "http://"+address, "--apiext-secret-file", secret)
	p.want(503, "does not answer", "GET", "/wukong/menu", nil)
	start(
		t,
		"controllers",
		"--kubeconfig",
		filepath.Join(p.data, "kubeconfig"),
		"--apiext-bind-address",
		address,
		"--apiext-secret-file",
		secret,
	)
	until(t, "the process answers", func() bool {
		code, _ := p.do("GET", "/wukong/menu", nil)
		return code == 200
	})
	askMenu(t, p)
	// Only the server may name callers.
	direct := &running{t: t, url: "http://" + address, said: p.said}
	for _, authorization := range []string{"", "Bearer wrong"} {
		direct.want(
			401,
			"only the server may ask",
			"GET",
			"/wukong/menu",
			nil,
			"Authorization",
			authorization,
			"X-Remote-User",
			"admin",
			"X-Remote-Group",
			"system:masters",
		)
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the secret: %v, %v", info, err)
	}
}

func TestFlags_aliases(t *testing.T) {
	t.Parallel()
	p := serving(
		t,
		"--backend=file",
		"--file-rootpath",
		filepath.Join(t.TempDir(), "root"),
		"--request-timeout=30s",
		"--unrestricted-update",
		"--kubectl-ephemeral-token",
	)
	p.topping("tomato", 1)
	text, err := os.ReadFile(filepath.Join(p.data, "kubeconfig"))
	if err != nil || !strings.Contains(string(text), "token: ") || strings.Contains(string(text), "client-key-data") {
		t.Errorf("the kubeconfig holds no token: %v", err)
	}
	// Without a resource version, an update overwrites other writes.
	p.want(200, `"cost":9`, "PUT", group+"v1beta1/toppings/tomato", map[string]any{
		"apiVersion": "restaurant.wukong.com/v1beta1",
		"kind":       "Topping",
		"metadata":   map[string]any{"name": "tomato"},
		"spec":       map[string]any{"cost": 9},
	})
	root := p.cmd.Args[len(p.cmd.Args)-4]
	until(t, "the file is below the root", func() bool {
		_, err := os.Stat(filepath.Join(root, "restaurant.wukong.com", "toppings", "_cluster", "tomato.yaml"))
		return err == nil
	})

	p = serving(t, "--storage=memory", "--kubectl-disabled")
	if _, err := os.Stat(filepath.Join(p.data, "kubeconfig")); !os.IsNotExist(err) {
		t.Errorf("there is a kubeconfig: %v", err)
	}
	p.want(403, "this server rejects requests of kubectl", "GET", pizzas, nil, "User-Agent", "kubectl/v1.37.2 (linux/amd64) kubernetes/1234567")
	p.want(200, "", "GET", pizzas, nil)
	p.topping("tomato", 1)
	p.want(422, "metadata.resourceVersion", "PUT", group+"v1beta1/toppings/tomato", map[string]any{
		"apiVersion": "restaurant.wukong.com/v1beta1",
		"kind":       "Topping",
		"metadata":   map[string]any{"name": "tomato"},
		"spec":       map[string]any{"cost": 9},
	})

	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("waiters-token,waiter,1,\"waiters\"\n"), fs.FileMode(0o600)); err != nil {
		t.Fatal(err)
	}
	p = serving(t, "--storage=memory", "--token-auth-file", tokens)
	p.want(403, `User \"waiter\" cannot list`, "GET", pizzas, nil, "Authorization", "Bearer waiters-token")
	p.want(401, "Unauthorized", "GET", pizzas, nil, "Authorization", "Bearer other")
	p.want(401, "Unauthorized", "GET", pizzas, nil, "Origin", "http://evil.example.com")
}

// Only the ports differ from the line in the README.
func TestFlags_startLineOfTheReplacedServer(t *testing.T) {
	t.Parallel()
	root, tokens := filepath.Join(t.TempDir(), "restaurant"), filepath.Join(t.TempDir(), "token.csv")
	if err := os.WriteFile(tokens, []byte("in-the-repository,chef,1,\"system:masters\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	insecure := free(t)
	_, port, _ := net.SplitHostPort(insecure)
	p, line := start(t, "--backend=file", "--file-rootpath="+root, "--token-auth-file="+tokens, "--unrestricted-update=true", "-v=10",
		"--kubectl-disabled=false", "--kubectl-ephemeral-token=false", "--authn-allow-localhost=true", "--secure-port=0",
		"--insecure-port="+port)
	p.url = "http://" + insecure
	p.topping("tomato", 1)
	p.want(200, "", "GET", pizzas, nil, "Authorization", "Bearer in-the-repository")
	until(t, "the object is below the root path", func() bool {
		_, err := os.Stat(filepath.Join(root, "objects", "restaurant.wukong.com", "toppings", "_cluster", "tomato.yaml"))
		return err == nil
	})
	for _, name := range []string{"kubeconfig", "cert/client.p12", "cert/pkcs12-password"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	secure := regexp.MustCompile(`https://\S+`).FindString(line)
	if secure == "" {
		t.Fatalf("no address in %q", line)
	}
	data, err := os.ReadFile(filepath.Join(root, "cert", "client.p12"))
	if err != nil {
		t.Fatal(err)
	}
	key, cert, _, err := pkcs12.DecodeChain(data, publicPassword)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, // curl -k
		Certificates:       []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
	}}}
	defer client.CloseIdleConnections()
	response, err := client.Get(secure + group + "v1alpha1/pizzas")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("the administrator gets %s", response.Status)
	}
}

func TestFlags_rootPath_nextToDataDir_isOfObjects(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--data-dir=d", "--file-rootpath=r"}, {"--file-rootpath=r", "--data-dir=d"}} {
		root := &cobra.Command{Use: "restaurant"}
		serve := &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error { return nil }}
		for _, name := range []string{"storage", "files-dir", "data-dir", "insecure-port", "pkcs12-password-file"} {
			serve.Flags().String(name, "", "")
		}
		root.AddCommand(serve)
		addAliases(root)
		root.SetArgs(append([]string{"serve", "--backend=file"}, args...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"storage": "files", "files-dir": "r", "data-dir": "d", "insecure-port": insecurePort, "pkcs12-password-file": "",
		} {
			if got := serve.Flags().Lookup(name).Value.String(); got != want {
				t.Errorf("%v: --%s is %q, want %q", args, name, got, want)
			}
		}
	}
}

func TestFlags_invalid_areRefused(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, bytes.Repeat([]byte("x"), 64), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ flags, want string }{
		{"serve --backend=mysql", `invalid argument "mysql" for "--backend" flag: choose etcd or file`},
		{"serve --backend=", "choose etcd or file"},
		{"serve --file-rootpath=", "it is empty"},
		{"serve --backend=etcd", "no etcd endpoints"},
		{"serve --backend=etcd --etcd-servers=http://127.0.0.1:1 --file-rootpath=x", "--files-dir"},
		{"serve --kubectl-disabled=perhaps", "choose false or true"},
		{"serve --kubectl-disabled --kubectl-ephemeral-token", "--ephemeral-token and --no-kubeconfig exclude each other"},
		{"serve --request-timeout=-1s", "--request-timeout"},
		{"serve --token-auth-file=missing.csv", "missing.csv"},
		{"serve --apiext-url=ftp://127.0.0.1", "want a URL such as http://127.0.0.1:6081"},
		{"serve --apiext-url=http://example.com:1", "on this machine only"},
		{"serve --apiext-url=https://user:password@example.com", "want no user, path, query or fragment in it"},
		{"serve --apiext-url=http://127.0.0.1:1/path", "want no user, path, query or fragment in it"},
		{"serve --apiext-url=http://127.0.0.1:1", "--apiext-secret-file is missing"},
		{"serve --apiext-url=http://127.0.0.1:1 --apiext-secret-file=" + open, "is open to other users (mode 0644): chmod 600 it"},
	} {
		t.Run(test.flags, func(t *testing.T) {
			t.Parallel()
			args := append(strings.Fields(test.flags), "--data-dir", filepath.Join(t.TempDir(), "data"), "--secure-port", "0")
			var out, errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			extensions := newExtensions()
			code := program.Run(ctx, server(extensions), args, &out, &errOut, addAliases, extensions.AddFlags)
			if code != 2 || !strings.Contains(errOut.String(), test.want) {
				t.Errorf("it ends with %d and says %q, want %q", code, &errOut, test.want)
			}
		})
	}
}
