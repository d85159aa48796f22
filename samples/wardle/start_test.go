package main_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// rounds is the number of measurements of each start; the median is reported.
const rounds = 9

// BenchmarkStart measures the time from exec to the first 200 of /readyz, with an empty data directory and with
// 100,000 flunders stored durably.
func BenchmarkStart(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "wardle")
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, ".").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	b.Run("empty", func(b *testing.B) {
		measure(b, func() *process { return start(b, binary, filepath.Join(b.TempDir(), "data")) })
	})
	b.Run("objects=100000", func(b *testing.B) {
		data := filepath.Join(b.TempDir(), "data")
		fill(b, start(b, binary, data), 100_000)
		measure(b, func() *process { return start(b, binary, data) })
	})
}

func measure(b *testing.B, start func() *process) {
	var times []time.Duration
	for range rounds {
		p := start()
		times = append(times, p.ready)
		p.stop(b)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[rounds/2].Microseconds())/1000, "ms/start-median")
	b.ReportMetric(float64(times[0].Microseconds())/1000, "ms/start-best")
	b.ReportMetric(0, "ns/op")
}

type process struct {
	cmd   *exec.Cmd
	data  string
	ready time.Duration
}

// start runs the program and polls /readyz until it answers 200.
func start(b *testing.B, binary, data string) *process {
	b.Helper()
	cmd := exec.Command(binary, "serve", "--secure-port=0", "--data-dir", data)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("the program ended: %v", cmd.Wait())
	}
	url := strings.TrimSpace(line[strings.Index(line, "https://"):])
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for {
		response, err := client.Get(url + "/readyz")
		if err != nil {
			b.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return &process{cmd: cmd, data: data, ready: time.Since(began)}
		}
	}
}

func (p *process) stop(b *testing.B) {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

// fill creates flunders of about a kilobyte with 32 writers and stops the server.
func fill(b *testing.B, p *process, n int) {
	b.Helper()
	defer p.stop(b)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.data, "kubeconfig"))
	if err != nil {
		b.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	if err := v1beta1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	gv := v1beta1.API().GroupVersion
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	if err != nil {
		b.Fatal(err)
	}
	const writers = 32
	var all sync.WaitGroup
	failures := make(chan error, writers)
	for w := range writers {
		all.Go(func() {
			for i := w; i < n; i += writers {
				f := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{
					Name:        fmt.Sprintf("flunder-%06d", i),
					Annotations: map[string]string{"text": strings.Repeat(fmt.Sprintf("%06d ", i), 60)},
				}}
				err := client.Post().Namespace("default").Resource("flunders").Body(f).Do(context.Background()).Error()
				if err != nil {
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failures)
	if err := <-failures; err != nil {
		b.Fatal(err)
	}
}
