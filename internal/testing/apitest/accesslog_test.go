package apitest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// accessLog is the file to which a server writes a line for each request.
type accessLog struct {
	t    *testing.T
	path string
}

type accessLine struct {
	User, Impersonated, Remote, ForwardedFor, Verb, URI, UserAgent, AuditID string

	Code, Bytes, LeftOut int
	Seconds              float64
	LongRunning, Panic   bool
}

func newAccessLog(t *testing.T) accessLog {
	return accessLog{t, filepath.Join(t.TempDir(), "access.log")}
}

func (l accessLog) json() annex.AccessLogOptions {
	return annex.AccessLogOptions{Path: l.path, Format: "json"}
}

func (l accessLog) text() string {
	l.t.Helper()
	data, err := os.ReadFile(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(data)
}

func (l accessLog) lines() []accessLine {
	l.t.Helper()
	var all []accessLine
	for text := range strings.Lines(l.text()) {
		var line accessLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			l.t.Fatalf("%s: %v", text, err)
		}
		all = append(all, line)
	}
	return all
}

// of waits for the line of the request with this response.
func (l accessLog) of(header http.Header) accessLine {
	l.t.Helper()
	var found accessLine
	testwait.Until(l.t, "the line of the request", func() bool {
		all := l.lines()
		i := slices.IndexFunc(all, func(line accessLine) bool { return line.AuditID == header.Get("Audit-Id") })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

func TestAccessLog_lineForEachRequest(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: log.json()})
	joe, jane := c.stranger("root"), c.stranger("secret")

	a := joe.post(widgetsPath, widget("w"), "User-Agent", "tester/1.0", "X-Forwarded-For", "192.0.2.7").want(201)
	line := log.of(a.header)
	if line.User != "joe" || line.Verb != "create" || line.URI != widgetsPath || line.Code != 201 || line.Bytes != len(a.raw) ||
		line.UserAgent != "tester/1.0" ||
		line.ForwardedFor != "192.0.2.7" || line.Remote == "" || line.Seconds <= 0 ||
		line.Seconds > patience.Seconds() ||
		line.LongRunning ||
		line.Panic {
		t.Errorf("a create: %+v", line)
	}
	for _, test := range []struct {
		name string
		*answer
		want accessLine
	}{
		{"of a caller who may not", jane.get(widgetsPath + "/w?pretty=true").want(403),
			accessLine{User: "jane", Verb: "get", URI: widgetsPath + "/w?pretty=true", Code: 403}},
		{"of what is not there", joe.get(widgetsPath + "/missing").want(404),
			accessLine{User: "joe", Verb: "get", URI: widgetsPath + "/missing", Code: 404}},
		{"on behalf of another", joe.get(widgetsPath, "Impersonate-User", "jane", "Impersonate-Group", "system:masters").want(200),
			accessLine{User: "joe", Impersonated: "jane", Verb: "list", URI: widgetsPath, Code: 200}},
		{"beside the API", joe.get("/version").want(200), accessLine{User: "joe", Verb: "get", URI: "/version", Code: 200}},
		{"of a caller who is not known", c.stranger("wrong").get("/apis").want(401), accessLine{User: "-", Verb: "get", URI: "/apis", Code: 401}},
		{"of an anonymous caller", c.stranger("").get("/readyz").want(200),
			accessLine{User: "system:anonymous", Verb: "get", URI: "/readyz", Code: 200}},
	} {
		got := log.of(test.header)
		if got.Bytes != len(test.raw) {
			t.Errorf("a request %s: %d bytes, the answer has %d", test.name, got.Bytes, len(test.raw))
		}
		if got = (accessLine{User: got.User, Impersonated: got.Impersonated, Verb: got.Verb, URI: got.URI, Code: got.Code}); got != test.want {
			t.Errorf("a request %s: %+v", test.name, got)
		}
	}
	if all := log.lines(); slices.ContainsFunc(all, func(l accessLine) bool {
		return l.User == "system:apiserver" && l.Verb != "create" && l.Verb != "update" && l.Verb != "patch"
	}) {
		t.Errorf("the server's own reads are in it: %+v", all)
	}
	info, err := os.Stat(log.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %o", err, info.Mode().Perm())
	}
}

func TestAccessLog_text_escapesInput(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	c := startWith(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: annex.AccessLogOptions{Path: log.path}},
	).stranger("root")
	c.get(widgetsPath+"?labelSelector=a%0auser%3Dnobody", "User-Agent", "a user=nobody code=200").want(400)
	testwait.Until(t, "the line", func() bool { return strings.Contains(log.text(), "labelSelector") })
	for line := range strings.Lines(log.text()) {
		if !strings.Contains(line, "labelSelector") {
			continue
		}
		if !strings.HasPrefix(line, "time=") || !strings.Contains(line, " user=joe ") ||
			!strings.Contains(line, ` userAgent="a user=nobody code=200" `) ||
			!strings.Contains(line, " code=400 ") {
			t.Errorf("got %s", line)
		}
	}
}

func TestAccessLog_holdsNoTokens(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: log.json()})
	var header http.Header
	for _, query := range []string{"access_token=hidden-1", "limit=1&Access_Token=hidden-2", "%61ccess_token=hidden-3",
		"limit=2;access_token=hidden-4", "password=hidden-5#x", "token=hidden-6&token=hidden-7", "%zz=hidden-8"} {
		c.stranger("root").get(widgetsPath + "?" + query)
		header = c.stranger("hidden-9").get(widgetsPath + "?" + query).want(401).header
	}
	log.of(header)
	if text := log.text(); strings.Contains(text, "hidden") || strings.Contains(text, "Bearer") || !strings.Contains(text, "limit=1") {
		t.Errorf("got %s", text)
	}
}

func TestAccessLog_unauthenticatedCallers_areLimited(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: log.json()})
	wrong := c.stranger("wrong")
	const requests = 2000
	for range requests {
		wrong.get("/apis").want(401)
	}
	testwait.Until(t, "those left out are said", func() bool {
		wrong.get("/apis").want(401)
		return slices.ContainsFunc(log.lines(), func(l accessLine) bool { return l.LeftOut > 0 })
	})
	c.stranger("root").get("/apis").want(200)
	if c.metric("annex_access_log_left_out_lines_total") == "0" {
		t.Error("none is counted as left out")
	}
	written, leftOut := 0, 0
	for _, line := range log.lines() {
		if line.Code == 401 {
			written++
		}
		leftOut += line.LeftOut
	}
	if written > requests/2 || leftOut == 0 || written+leftOut > requests+requests/2 {
		t.Errorf("%d lines are written, and say that %d are left out", written, leftOut)
	}
}

func TestAccessLog_longRequests_atTheirEnd(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	s := shop()
	s.Groups[0].Kinds[0] = widgets().Subresources(annex.Connect("exec", echo))
	instance, stop := run(t, s, annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: log.json()})
	c := clientOf(t, instance).stranger("root")
	c.post(widgetsPath, widget("w")).want(201)
	w := c.watch(widgetsPath + "?watch=1")
	w.next()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response := c.http1().send(ctx, http.MethodGet, widgetsPath+"/w/exec", nil, "Connection", "Upgrade", "Upgrade", "echo")
	defer response.Body.Close()
	stream, ok := response.Body.(io.ReadWriter)
	if !ok {
		t.Fatal(response.Status)
	}
	fmt.Fprintln(stream, "one")
	if got, err := bufio.NewReader(stream).ReadString('\n'); err != nil || got != "one\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	log.of(c.get("/apis").want(200).header)
	long := func(l accessLine) bool { return l.Verb == "watch" || strings.HasSuffix(l.URI, "/exec") }
	if all := log.lines(); slices.ContainsFunc(all, long) {
		t.Errorf("they are in it before they have ended: %+v", all)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.ends()
	found := map[string]accessLine{}
	for _, line := range log.lines() {
		if long(line) {
			found[line.Verb] = line
		}
	}
	if watch := found["watch"]; !watch.LongRunning || watch.Code != 200 || watch.Bytes == 0 || watch.User != "joe" {
		t.Errorf("the watch: %+v", watch)
	}
	if taken := found["get"]; !taken.LongRunning || taken.Code != 101 || taken.User != "joe" {
		t.Errorf("the connection: %+v", taken)
	}
}

func TestAccessLog_panics(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Default(func(*v1.Widget) { panic("a mistake") })
	c := startWith(t, only(kind), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: log.json()})
	a := c.stranger("root").post(widgetsPath, widget("w"))
	a.refused(500, metav1.StatusReasonInternalError, "panic")
	if line := log.of(a.header); !line.Panic || line.Code != 500 || line.User != "joe" {
		t.Errorf("got %+v", line)
	}
}

func TestAccessLog_fullDisk_losesOnlyLines(t *testing.T) {
	t.Parallel()
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip("there is no device that is full")
	}
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), AccessLog: annex.AccessLogOptions{Path: full}})
	c.post(widgetsPath, widget("w")).want(201)
	testwait.Until(t, "the loss is counted", func() bool {
		return c.metric("annex_access_log_lost_lines_total") != "0"
	})
	c.get("/readyz").want(200)
}

func TestAccessLog_rotation(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	options := log.json()
	options.Rotation = annex.RotationOptions{MaxSize: 4 << 10, MaxBackups: 2}
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), AccessLog: options}).stranger("root")
	var backups []string
	testwait.Until(t, "files are renamed, and the oldest removed", func() bool {
		for range 20 {
			c.get(widgetsPath).want(200)
		}
		found, err := filepath.Glob(filepath.Join(filepath.Dir(log.path), "access-*.log"))
		if err != nil {
			t.Fatal(err)
		}
		before := backups
		backups = found
		return len(found) == 2 && len(before) == 2 && !slices.Equal(found, before)
	})
	data, err := os.ReadFile(backups[0])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(data, []byte("}\n")) {
		t.Errorf("a line was split: %s", data)
	}
}
