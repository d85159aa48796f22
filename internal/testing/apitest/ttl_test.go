package apitest_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

func TestTTL_expiry(t *testing.T) {
	t.Parallel()
	c := startKind(t, widgets().TTL(time.Second), annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped())
	w := c.watch(widgetsPath + "?watch=1")
	c.create("a")
	c.post(shelvesPath, shelf("b")).want(http.StatusCreated)
	w.want("ADDED a", "DELETED a")
	c.get(widgetsPath + "/a").want(http.StatusNotFound)
	c.get(shelvesPath + "/b").want(http.StatusOK)
}

func TestTTL_wholeSeconds(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]string{
		-time.Second:       "TTL must be a number of seconds, not -1s",
		time.Second + 1:    "TTL must be a number of seconds, not 1.000000001s",
		time.Second / 1000: "TTL must be a number of seconds, not 1ms",
	} {
		_, err := annex.New(t.Context(), only(widgets().TTL(ttl)), annex.Options{Storage: memory.Storage()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ttl, err)
		}
	}
}
