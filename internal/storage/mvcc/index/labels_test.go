package index_test

import (
	"fmt"
	"testing"
	"time"
)

func (e *env) wantEntries(step string, entries int64) {
	e.t.Helper()
	if got := e.maintenance.LabelEntries(); got != entries {
		e.t.Errorf("%s: labels have %d entries, want %d", step, got, entries)
	}
}

// putSizes writes pods of five sizes, a label that no Indexer declares.
func (e *env) putSizes(pods int) {
	for i := range pods {
		e.source.put(fmt.Sprintf("ns/pod-%02d", i), fmt.Sprint("size=", i%5))
	}
}

func TestPlan_undeclaredLabel_secondListBuilds(t *testing.T) {
	e := newEnv(t, options{})
	e.putSizes(10)
	e.want("the first list", "size=1", scan, 0)
	e.want("the second list", "size=1", "pod-01 pod-06", 10)
	e.wantEntries("the second list", 10)
	e.want("another value", "size in (1,2)", "pod-01 pod-02 pod-06 pod-07", 0)
	e.want("the first list by existence", "size", scan, 0)
	e.want("the second list by existence", "size", "pod-00 pod-01 pod-02 pod-03 pod-04 pod-05 pod-06 pod-07 pod-08 pod-09", 10)
	e.wantEntries("two indexes", 20)
	e.source.put("ns/pod-01")
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.source.trim()
	e.want("after a compaction", "size=1", "pod-06", 0)
	e.clock.Step(10 * time.Minute)
	e.maintenance.DropUnused()
	e.wantEntries("ten minutes later", 0)
}

func TestPlan_undeclaredLabel_exactOnlyIfAlone(t *testing.T) {
	e := newEnv(t, options{})
	e.source.put("ns/pod", "size=1", "color=red")
	for _, test := range []struct {
		selector string
		want     bool
	}{{"size=1", true}, {"size=1,size in (1,2)", false}, {"size=1,other!=1", false}, {"color=red", false}} {
		_ = e.plan(test.selector)
		if best := e.plan(test.selector); best == nil || best.Exact() != test.want {
			t.Errorf("the result of %s is %v, want one that is exact: %v", test.selector, best, test.want)
		}
	}
}

func TestPlan_tooManyEntries_dropsTheIndex(t *testing.T) {
	e := newEnv(t, options{labelEntries: 12})
	e.putSizes(10)
	for i := range 3 {
		e.source.put(fmt.Sprintf("ns/marked-%d", i), "marked")
	}
	_ = e.find("size=1")
	e.want("within the limit", "size=1", "pod-01 pod-06", 13)
	_ = e.find("marked")
	e.want("more entries than the limit together", "marked", scan, 13)
	e.wantEntries("without the second index", 10)
	e.want("a list after it", "marked", scan, 0)
	e.putSizes(13)
	e.want("an index that has grown too large", "size=1", scan, 13)
	e.wantEntries("without any index", 0)
	e.clock.Step(time.Minute)
	e.want("the other one instead, a minute later", "marked", "marked-0 marked-1 marked-2", 16)
	e.wantEntries("with the second index", 3)
}

func TestPlan_tooManyLabels_replacesTheOldest(t *testing.T) {
	e := newEnv(t, options{})
	e.putSizes(10)
	_ = e.find("size=1")
	e.want("the first label", "size=1", "pod-01 pod-06", 10)
	e.clock.Step(time.Second)
	for i := range 15 {
		_ = e.find(fmt.Sprint("label-", i))
		e.want("another label", fmt.Sprint("label-", i), "", 10)
	}
	for range 3 {
		e.want("one label too many", "one-more", scan, 0)
	}
	e.clock.Step(time.Minute - time.Second)
	e.want("in place of one that has not been used for a minute, first", "one-more", scan, 0)
	e.want("in place of one that has not been used for a minute", "one-more", "", 10)
	e.wantEntries("without the first label", 0)
	e.resetReads()
	e.source.put("ns/pod-01", "size=2")
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("maintenance of the others only", 16)
	e.want("the first label again, when others are in use", "size=1", scan, 0)
}

func TestClose_labels_areNoLongerCounted(t *testing.T) {
	e := newEnv(t, options{})
	e.putSizes(10)
	_ = e.find("size=1")
	e.want("an index", "size=1", "pod-01 pod-06", 10)
	e.wantEntries("an index", 10)
	e.indexes.Close()
	e.wantEntries("a closed resource", 0)
	_ = e.find("size")
	_ = e.find("size")
	e.wantEntries("an index that is built later", 0)
}
