package apitest_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// A list that is read slowly holds its memory until the request's deadline, and no longer.
func TestList_slowReader_endsAtDeadline(t *testing.T) {
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), RequestTimeout: 2 * time.Second})
	long := strings.Repeat("x", 200<<10)
	for i := range 100 { // 20 MB, more than sockets hold
		c.create(fmt.Sprintf("w%d", i), metadata(fields{"annotations": fields{"long": long}}))
	}
	if slow() {
		t.Skip("upstream's handlers keep the answer, which leaves when they have returned")
	}
	writing := func() int {
		buffer := make([]byte, 64<<20)
		return strings.Count(string(buffer[:runtime.Stack(buffer, true)]), "reads.encodedList.write(")
	}
	for _, protocol := range []string{"http/1.1", "h2"} {
		config := rest.CopyConfig(c.config)
		config.NextProtos = []string{protocol}
		slow := connect(t, config)
		response := slow.send(t.Context(), http.MethodGet, widgetsPath, nil, "Accept", jsonType, "Accept-Encoding", "identity")
		if response.StatusCode != http.StatusOK || (response.ProtoMajor == 2) != (protocol == "h2") {
			t.Fatalf("%s: %s %s", protocol, response.Status, response.Proto)
		}
		testwait.Until(t, "the server to wait for its client", func() bool { return writing() == 1 })
		testwait.Until(t, "the list to end, "+protocol, func() bool { return writing() == 0 })
		response.Body.Close()
	}
}
