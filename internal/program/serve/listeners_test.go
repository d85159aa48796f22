package serve

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"testing"
)

// occupied returns the address of a listener of this test.
func occupied(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestListen_portInUse_namesTheHolderAndAFreePort(t *testing.T) {
	address := occupied(t)
	holder := "another program"
	if runtime.GOOS == "linux" {
		holder = fmt.Sprintf(`[^ ]+ \(process %d\)`, os.Getpid())
	}
	_, port, _ := net.SplitHostPort(address)
	for field, remedy := range map[string]string{
		secureField:              "set Options.Listen to a free port, such as ([0-9]+)",
		"Options.ListenInsecure": "set Options.ListenInsecure to (?:a free port, such as ([0-9]+)|another port)",
	} {
		_, err := listen(field, address)
		if err == nil {
			t.Fatalf("%s: a port in use is taken", field)
		}
		want := regexp.MustCompile("^" + field + ": port " + port + " of 127.0.0.1 is in use by " + holder + ": stop it, or " + remedy + "$")
		match := want.FindStringSubmatch(err.Error())
		if match == nil {
			t.Fatalf("the error is %q, not %s", err, want)
		}
		if match[1] == port {
			t.Errorf("the error names the port in use as free: %v", err)
		}
	}
}

func TestHolder_unknown(t *testing.T) {
	for _, port := range []string{"0", "http", ""} {
		if got := holder(port); got != "another program" {
			t.Errorf("the holder of port %q is %s", port, got)
		}
	}
}

func TestListeningSockets_readsTheKernelsTable(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:20FB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:20FB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:20FC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
   3: broken
`
	if got := fmt.Sprint(listeningSockets(table, 8443)); got != "[4711]" {
		t.Errorf("sockets %s listen on 8443", got)
	}
}

func TestPrintable_removesControls(t *testing.T) {
	for in, want := range map[rune]rune{'a': 'a', 'é': 'é', '\n': -1, '\x1b': -1} {
		if got := printable(in); got != want {
			t.Errorf("%q becomes %q", in, got)
		}
	}
}
