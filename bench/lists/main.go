// Command lists measures lists of very many objects: the increase of a server's resident memory while a list is
// answered in each of its forms, once and several times concurrently, and the processor time. The server is a process
// of its own, the project's sample. Clients discard the responses.
//
//	go -C samples/wardle build -o /tmp/wardle .
//	go run ./lists -server /tmp/wardle
//	go run ./lists -server /tmp/wardle -storage memory -objects 20000 -only yaml,protobuf
//
// It needs Linux, whose /proc has the server's resource usage. Memory is in MB, processor time in seconds.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// form is a way to request a list.
type form struct {
	name, version, accept, query string
	compressed                   bool
}

const (
	asTable    = ";as=Table;v=v1;g=meta.k8s.io"
	asMetadata = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	jsonType   = "application/json"
	yamlType   = "application/yaml"
	protobuf   = "application/vnd.kubernetes.protobuf"
	stored     = "v1alpha1"
	other      = "v1beta1"
)

func forms() []form {
	return []form{
		{"json", stored, jsonType, "", false},
		{"json-gzip", stored, jsonType, "", true},
		{"pretty", stored, jsonType, "?pretty=true", false},
		{"yaml", stored, yamlType, "", false},
		{"yaml-gzip", stored, yamlType, "", true},
		{"protobuf", stored, protobuf, "", false},
		{"protobuf-gzip", stored, protobuf, "", true},
		{"table", stored, jsonType + asTable, "", false},
		{"table-yaml", stored, yamlType + asTable, "", false},
		{"metadata", stored, jsonType + asMetadata, "", false},
		{"metadata-yaml", stored, yamlType + asMetadata, "", false},
		{"metadata-protobuf", stored, protobuf + asMetadata, "", false},
		{"other-json", other, jsonType, "", false},
		{"other-pretty", other, jsonType, "?pretty=true", false},
		{"other-yaml", other, yamlType, "", false},
		{"other-protobuf", other, protobuf, "", false},
		{"other-table", other, jsonType + asTable, "", false},
		{"other-selected", other, jsonType, "?fieldSelector=metadata.name!%3Dnone", false},
		{
			"watch-list",
			stored,
			jsonType,
			"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60",
			false,
		},
	}
}

type settings struct {
	server, storage, only, timeout string
	data                           string
	objects, size, many            int
	restart                        bool
}

func main() {
	var s settings
	flag.StringVar(&s.server, "server", "", "the server's program, the sample wardle")
	flag.StringVar(&s.storage, "storage", "embedded", "the server's storage: memory, embedded or files")
	flag.StringVar(&s.only, "only", "", "the forms to measure, separated by commas; all if empty")
	flag.StringVar(&s.data, "data", "", "a directory for the objects, which keeps them for the next run; a temporary one if empty")
	flag.IntVar(&s.objects, "objects", 200_000, "how many objects there are")
	flag.IntVar(&s.size, "size", 2000, "the size of an object in bytes, about")
	flag.IntVar(&s.many, "many", 8, "how many lists are asked for at once; 0 for none")
	flag.BoolVar(&s.restart, "restart", false, "start the server anew before each form")
	flag.StringVar(&s.timeout, "timeout", "10m", "how long one list may take")
	flag.Parse()
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(s settings) error {
	dir, err := os.MkdirTemp("", "lists-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server := &server{settings: s, dir: dir}
	if s.data == "" {
		server.data = filepath.Join(dir, "data")
	}
	_, err = os.Stat(server.data)
	filled := err == nil
	if err := server.start(); err != nil {
		return err
	}
	defer func() { server.stop() }()
	began := time.Now()
	if !filled {
		if err := server.fill(); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	fmt.Printf("%d objects on %s, filled in %s\n", s.objects, s.storage, time.Since(began).Round(time.Second))
	fmt.Printf("%-20s %6s %9s %9s %9s %8s %8s %9s\n", "form", "lists", "before", "peak", "rise", "cpu-s", "wall-s", "sent-MB")
	for _, f := range forms() {
		if s.only != "" && !slices.Contains(strings.Split(s.only, ","), f.name) {
			continue
		}
		if s.restart {
			if err := server.stop(); err != nil {
				return err
			}
			if err := server.start(); err != nil {
				return err
			}
		}
		for _, n := range []int{1, s.many} {
			if n == 0 {
				continue
			}
			if err := server.measure(f, n); err != nil {
				return fmt.Errorf("%s, %d at once: %w", f.name, n, err)
			}
		}
	}
	return nil
}

// server is the measured process.
type server struct {
	settings
	dir     string
	process *exec.Cmd
	client  *http.Client
	config  *tls.Config
	base    string
}

func (s *server) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	const port = "18643"
	s.process = exec.Command(s.server, "serve", "--data-dir", s.data, "--storage", s.storage, "--secure-port", port)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return err
	}
	s.base = "https://127.0.0.1:" + port
	for range 3000 {
		if err = s.ready(s.data); err == nil {
			return s.rest()
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name())
	return errors.Join(fmt.Errorf("the server is not ready: %w\n%s", err, text), s.stop())
}

func (s *server) ready(data string) error {
	c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	if err != nil {
		return err
	}
	if s.config, err = rest.TLSConfigFor(c); err != nil {
		return err
	}
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: s.config.Clone(), ForceAttemptHTTP2: true, DisableCompression: true}}
	answer, err := s.client.Get(s.base + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func (s *server) stop() error {
	if s.process == nil {
		return nil
	}
	_ = s.process.Process.Signal(os.Interrupt)
	_ = s.process.Wait()
	s.process = nil
	return nil
}

func path(version string) string {
	return "/apis/wardle.example.com/" + version + "/namespaces/default/flunders"
}

func (s *server) fill() error {
	note := strings.Repeat("image replicas template container port env value limit request ", max(1, (s.size-850)/63))
	var next atomic.Int64
	failed := make([]error, 32)
	var filling sync.WaitGroup
	for n := range failed {
		filling.Go(func() {
			for i := next.Add(1) - 1; i < int64(s.objects); i = next.Add(1) - 1 {
				body := fmt.Sprintf(
					`{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":"listed-%06d",`+
						`"labels":{"app":"web","tier":"front","group":"group-%02d"},`+
						`"annotations":{"example.com/note":%q,"example.com/sequence":"%08d"}},"spec":{"reference":"another-flunder",`+
						`"referenceType":"Flunder"}}`,
					i,
					i%100,
					note,
					i,
				)
				answer, err := s.client.Post(s.base+path(stored), jsonType, strings.NewReader(body))
				if err != nil {
					failed[n] = err
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode != http.StatusCreated {
					failed[n] = errors.New(answer.Status)
					return
				}
			}
		})
	}
	filling.Wait()
	return errors.Join(failed...)
}

// rest waits until the server has released unneeded memory.
func (s *server) rest() error {
	for last, equal := 0.0, 0; equal < 3; {
		time.Sleep(3 * time.Second)
		now, err := s.status("VmRSS:")
		if err != nil {
			return err
		}
		if now > last-2 && now < last+2 {
			equal++
		} else {
			equal = 0
		}
		last = now
	}
	return nil
}

// status returns a size of the server's in MB.
func (s *server) status(name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), name)
	kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kilobytes / 1000, err
}

// used returns the server's processor time in seconds.
func (s *server) used() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
	user, _ := strconv.ParseFloat(fields[12], 64)
	system, err := strconv.ParseFloat(fields[13], 64)
	return (user + system) / 100, err
}

func (s *server) measure(f form, lists int) error {
	if err := s.rest(); err != nil {
		return err
	}
	before, err := s.status("VmRSS:")
	if err != nil {
		return err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.process.Process.Pid), []byte("5"), 0); err != nil {
		return err
	}
	usedBefore, err := s.used()
	if err != nil {
		return err
	}
	limit, err := time.ParseDuration(s.timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	var listing sync.WaitGroup
	failed, sent := make([]error, lists), atomic.Int64{}
	for n := range failed {
		listing.Go(func() {
			bytes, err := s.list(ctx, f)
			sent.Add(bytes)
			failed[n] = err
		})
	}
	listing.Wait()
	took := time.Since(began)
	usedAfter, err := s.used()
	if err != nil {
		return err
	}
	peak, err := s.status("VmHWM:")
	if err != nil {
		return err
	}
	note := ""
	if err := errors.Join(failed...); err != nil {
		note = " " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Printf(
		"%-20s %6d %9.0f %9.0f %9.0f %8.1f %8.1f %9.0f%s\n",
		f.name,
		lists,
		before,
		peak,
		peak-before,
		usedAfter-usedBefore,
		took.Seconds(),
		float64(sent.Load())/1e6,
		note,
	)
	return nil
}

// list requests a list on a connection of its own.
func (s *server) list(ctx context.Context, f form) (int64, error) {
	transport := &http.Transport{TLSClientConfig: s.config.Clone(), ForceAttemptHTTP2: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path(f.version)+f.query, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", f.accept)
	r.Header.Set("User-Agent", "lists")
	if f.compressed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		return 0, fmt.Errorf("%s: %s", answer.Status, text)
	}
	if strings.Contains(f.query, "watch=") {
		return untilBookmark(answer.Body)
	}
	return io.Copy(io.Discard, answer.Body)
}

// untilBookmark reads a watch until the end of the initial events.
func untilBookmark(from io.Reader) (int64, error) {
	const end = `k8s.io/initial-events-end`
	buffer, kept, read := make([]byte, 64<<10), 0, int64(0)
	for {
		n, err := from.Read(buffer[kept:])
		read += int64(n)
		if strings.Contains(string(buffer[:kept+n]), end) {
			return read, nil
		}
		if err != nil {
			return read, err
		}
		kept = copy(buffer, buffer[max(0, kept+n-len(end)):kept+n])
	}
}
