package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestServer_responses(t *testing.T) {
	s := httptest.NewServer(newServer(3))
	t.Cleanup(s.Close)
	send := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	if code, list := send("GET", "/flunders", ""); code != 200 || strings.Count(list, `"uid":"`) != 3 {
		t.Errorf("a list: %d %s", code, list)
	}
	if code, text := send(
		"POST",
		"/flunders",
		`{"metadata":{"name":"one","annotations":{"example.com/sequence":"7"}}}`,
	); code != 201 || !strings.Contains(text, `"name":"one"`) ||
		!strings.Contains(text, `"example.com/sequence":"7"`) {
		t.Errorf("a create: %d %s", code, text)
	}
	for _, patch := range []string{
		`{"metadata":{"annotations":{"example.com/sequence":"8"}}}`,
		`[{"op":"replace","path":"/metadata/annotations/example.com~1sequence","value":"8"}]`,
	} {
		if code, text := send("PATCH", "/flunders/one", patch); code != 200 || !strings.Contains(text, `"example.com/sequence":"8"`) {
			t.Errorf("patch %s: %d %s", patch, code, text)
		}
	}
	if code, text := send("GET", "/flunders/one", ""); code != 200 || len(text) < 800 {
		t.Errorf("a get: %d %s", code, text)
	}
	if code, text := send("PUT", "/flunders/one", "{"); code != 400 || !strings.Contains(text, "JSON") {
		t.Errorf("a body that is no JSON: %d %s", code, text)
	}
}

func TestWatch_everyChangeInOrder(t *testing.T) {
	s := httptest.NewServer(newServer(0))
	t.Cleanup(s.Close)
	watch, err := s.Client().Get(s.URL + "/flunders?watch=1")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	const changes = 100
	go func() {
		for i := range changes {
			r, _ := http.NewRequest(
				http.MethodPatch,
				s.URL+"/flunders/one",
				strings.NewReader(fmt.Sprintf(`{"metadata":{"annotations":{"example.com/sequence":"%d"}}}`, i)),
			)
			if answer, err := s.Client().Do(r); err == nil {
				answer.Body.Close()
			}
		}
	}()
	lines := bufio.NewScanner(watch.Body)
	for i := range changes {
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprintf(`"example.com/sequence":"%d"`, i)) {
			t.Fatalf("event %d: %s, %v", i, lines.Text(), lines.Err())
		}
	}
}

func TestLog_writtenBeforeResponse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	handler := newServer(0)
	handler.log = log
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	send := func(method, path, body string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	var clients sync.WaitGroup
	const writers, each = 8, 5
	for c := range writers {
		clients.Go(func() {
			for i := range each {
				name := fmt.Sprintf("object-%d-%d", c, i)
				if code := send("POST", "/flunders", fmt.Sprintf(`{"metadata":{"name":%q}}`, name)); code != 201 {
					t.Errorf("a create: %d", code)
				}
				if text, err := os.ReadFile(path); err != nil || !bytes.Contains(text, []byte(name)) {
					t.Errorf("%s was answered and is not in the log: %v", name, err)
				}
			}
		})
	}
	clients.Wait()
	if code := send("DELETE", "/flunders/object-0-0", ""); code != 200 {
		t.Errorf("a delete: %d", code)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != logSize || !bytes.Contains(text, []byte("/flunders/object-0-0")) {
		t.Errorf("the delete is not in the log of %d bytes: %v", len(text), err)
	}

	log.at = logSize - 1
	if code := send("POST", "/flunders", `{"metadata":{"name":"over-the-end"}}`); code != 201 {
		t.Errorf("at the end of the log: %d", code)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != logSize {
		t.Errorf("the log has got longer: %v, %v", info, err)
	}

	log.close()
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if code := send(method, "/flunders/one", "{}"); code != 500 {
			t.Errorf("%s that cannot be kept: %d", method, code)
		}
	}
}

func TestOpenLog_failure(t *testing.T) {
	if _, err := openLog(filepath.Join(t.TempDir(), "missing", "log")); err == nil || !strings.Contains(err.Error(), "create the log") {
		t.Error(err)
	}
}

func TestRun_missingCertificate(t *testing.T) {
	if err := run(
		t.Context(),
		[]string{"-cert", "no-such-file", "-key", "no-such-file"},
	); err == nil ||
		!strings.Contains(err.Error(), "read the certificate") {
		t.Error(err)
	}
}
