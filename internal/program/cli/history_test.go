package cli

import (
	"testing"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store"
)

func TestHistoryOf_bounds(t *testing.T) {
	t.Parallel()
	var options config.Options
	flag := &historyOf{&options.HistoryOf}
	const text = "a.example.com=720h,b.example.com=100,c.example.com=1h30m+5+10Gi,d=2h+1Mi"
	if err := flag.Set(text); err != nil {
		t.Fatal(err)
	}
	if got := flag.String(); got != text {
		t.Errorf("%s, want %s", got, text)
	}
	for _, text := range []string{"", "a", "a=", "a=0", "a=-1h", "a=1h+2h", "a=1+2", "a=10Gi", "a=1h+10Gi+1Mi", "a=1h+x", "=1h"} {
		if err := flag.Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestHistoryText(t *testing.T) {
	t.Parallel()
	for want, keep := range map[string]store.Retention{
		"":                  {},
		"720h, at most 1Gi": {Age: 720 * 3600e9},
		"30m, at most 2Mi":  {Age: 1800e9, Bytes: 2 << 20},
		"7 revisions of each object, at most 1Gi":     {Revisions: 7},
		"1h, 7 revisions of each object, at most 1Gi": {Age: 3600e9, Revisions: 7},
	} {
		if got := historyText(keep); got != want {
			t.Errorf("%+v: %q, want %q", keep, got, want)
		}
	}
}
