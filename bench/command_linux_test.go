package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestCommandLine_mistakes(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-rounds", "0"}, "-rounds 0: at least one"},
		{[]string{"everything"}, `unknown argument "everything"`},
		{[]string{"-quick"}, "flag provided but not defined: -quick"},
		{[]string{"-dir", "/dev/shm"}, "-dir /dev/shm is a tmpfs"},
		{[]string{"-dir", "/nowhere"}, "/nowhere: no such file or directory"},
	} {
		err := run(t.Context(), test.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %s", test.args, err, test.want)
		}
	}
}

const someResults = `goos: linux
BenchmarkCreate/backend=embedded/size=1KB/writers=64-2 1 50.0 cpu-us/write 30000 writes/s
BenchmarkCreate/backend=embedded/size=1KB/writers=64-2 1 70.0 cpu-us/write 10000 writes/s
BenchmarkCreate/backend=embedded/size=1KB/writers=64-2 1 60.0 cpu-us/write 20000 writes/s
BenchmarkCreate/backend=etcd/size=1KB/writers=64-2 1 240.0 cpu-us/write 4000 writes/s
BenchmarkUpstreamStoreStats/backend=embedded-2 1000 63.5 ns/op
`

func TestWrite_mediansAndFactors(t *testing.T) {
	found, err := parse(strings.NewReader(someResults))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := write(&out, machine{}, settings{rounds: 3}, found, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| durable creates per second, 64 writers, 1 KB | 4x | 5.00x |  |",
		"| processor time of such a create | at most 1/3 | 1/4.00 |",
		"| 1KB, 64 writers: creates/s |  | 20,000 | 4,000 |  | 5.00x |  |",
		"| 1KB, 64 writers: CPU us each |  | 60.0 | 240 |  | 4.00x |  |",
		"| StoreStats: ns |  | 63.5 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestPlan_everyCellIsABenchmark(t *testing.T) {
	sources, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, source := range sources {
		if strings.HasSuffix(source.Name(), "_test.go") {
			text, err := os.ReadFile(source.Name())
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	for _, g := range (settings{rounds: 1}).plan() {
		for _, c := range g.cells {
			if !strings.Contains(all.String(), "func Benchmark"+c.benchmark+"(b *testing.B)") {
				t.Errorf("there is no Benchmark%s", c.benchmark)
			}
		}
	}
}
