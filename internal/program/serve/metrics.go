package serve

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/storage/mvcc"
)

// metrics collects the metrics of one storage. They belong to one server, while all servers of a process share
// upstream's metrics.
type metrics struct {
	core    *mvcc.Core
	metrics []metric
}

// newMetrics labels the metrics of a core with the name of its storage.
func newMetrics(storage string, core *mvcc.Core) metrics {
	return metrics{core, coreMetrics(prometheus.Labels{"storage": storage})}
}

// metric is a metric of a core, with its description.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(mvcc.Stats) float64
}

func coreMetrics(labels prometheus.Labels) []metric {
	newMetric := func(name, help string, kind prometheus.ValueType, value func(mvcc.Stats) float64) metric {
		return metric{prometheus.NewDesc("annex_storage_"+name, help, nil, labels), kind, value}
	}
	return []metric{
		newMetric("revision", "Newest revision that readers see.", prometheus.CounterValue,
			func(s mvcc.Stats) float64 { return float64(s.Revision) }),
		newMetric("compacted_revision", "Oldest revision at which clients can list exactly or from which they "+
			"can watch.", prometheus.CounterValue,
			func(s mvcc.Stats) float64 { return float64(s.Compacted) }),
		newMetric("history_events", "Revisions in the history.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.Events) }),
		newMetric("history_bytes", "Encoded bytes of the history, without the current objects.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.HistoryBytes) }),
		newMetric("history_limit_bytes", "Limit of history_bytes; +Inf without a limit.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 {
				if s.HistoryLimit == math.MaxInt64 {
					return math.Inf(1)
				}
				return float64(s.HistoryLimit)
			}),
		newMetric("history_memory_bytes", "Part of history_bytes that is in memory.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.HotBytes) }),
		newMetric("kept_revisions", "Revisions that are kept for clients beyond the history of watches.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.Kept) }),
		newMetric("kept_bytes", "Bytes of the kept revisions.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.KeptBytes) }),
		newMetric(
			"history_trimmed_early_total",
			"Revisions that the storage removed from the history early because of the byte limit.",
			prometheus.CounterValue,
			func(s mvcc.Stats) float64 { return float64(s.TrimmedEarly) },
		),
		newMetric("value_bytes", "Encoded bytes of current objects in memory.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.ValueBytes) }),
		newMetric("value_limit_bytes", "Limit of value_bytes.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.ValueLimit) }),
		newMetric("decoded_bytes", "Estimated bytes of the decoded objects in memory.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.DecodedBytes) }),
		newMetric("decoded_limit_bytes", "Limit of decoded_bytes.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.DecodedLimit) }),
		newMetric("label_index_entries", "Entries of the label indexes for lists with selectors, each of about "+
			"150 bytes.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.LabelEntries) }),
		newMetric("label_index_limit_entries", "Limit of label_index_entries.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.LabelLimit) }),
		newMetric("watches", "Watches open on the storage.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 { return float64(s.Watches) }),
		newMetric("read_only", "1 while the storage accepts no writes, else 0.", prometheus.GaugeValue,
			func(s mvcc.Stats) float64 {
				if s.ReadOnly {
					return 1
				}
				return 0
			}),
		newMetric("recoveries_total", "Recoveries of the storage from a failure without a restart.", prometheus.CounterValue,
			func(s mvcc.Stats) float64 { return float64(s.Recoveries) }),
	}
}

func (m metrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.metrics {
		out <- f.desc
	}
}

func (m metrics) Collect(out chan<- prometheus.Metric) {
	stats := m.core.Stats()
	for _, f := range m.metrics {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(stats))
	}
}

// LabelIndexEntries bounds the entries of the label indexes for list selectors, in each storage.
const LabelIndexEntries = mvcc.DefaultLabelEntries

// The cache of encoded list items takes a sixteenth of the process's memory limit, within these bounds.
const (
	listItemsShare = 16
	leastListItems = 64 << 20
	mostListItems  = 256 << 20
)

// ListItems returns the size in bytes of the cache of encoded list items, for objects whose stored form differs
// from the served form.
func ListItems() int64 {
	return min(max(budget.Available()/listItemsShare, leastListItems), mostListItems)
}

// listItemsMetrics are the metrics of the cache of list items.
func listItemsMetrics(items *convert.Items) []prometheus.Collector {
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		gauge(
			"annex_list_items_bytes",
			"Bytes of encoded list items in memory, for objects whose stored form differs from the served form.",
			func() int64 { used, _ := items.Bytes(); return used },
		),
		gauge(
			"annex_list_items_limit_bytes",
			"Limit of annex_list_items_bytes.",
			func() int64 { _, limit := items.Bytes(); return limit },
		),
	}
}

// MemoryBudget returns the memory budget of requests in bytes; -1 is unbounded. For an option of 0 it returns the
// default of this process.
func MemoryBudget(option int64) int64 {
	if option == 0 {
		return budget.Default()
	}
	return max(option, -1)
}

// newBudget returns the memory budget of requests; nil if it is unbounded.
func newBudget(option int64) *budget.Budget {
	bytes := MemoryBudget(option)
	if bytes < 0 {
		return nil
	}
	return budget.New(bytes)
}

// budgetMetrics are the metrics of the memory budget; none if it is unbounded.
func budgetMetrics(b *budget.Budget) []prometheus.Collector {
	if b == nil {
		return nil
	}
	gauge := func(name, help string, value func(budget.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(b.Stats()) })
	}
	return []prometheus.Collector{
		gauge("annex_memory_budget_bytes", "Memory budget of all running "+
			"requests.", func(s budget.Stats) float64 { return float64(s.Bytes) }),
		gauge(
			"annex_memory_budget_used_bytes",
			"Memory of the budget that requests hold, estimated from above.",
			func(s budget.Stats) float64 { return float64(s.Used) },
		),
		gauge(
			"annex_memory_budget_wire_bytes",
			"Bytes of the budget that requests hold until clients have sent or read them.",
			func(s budget.Stats) float64 { return float64(s.Wire) },
		),
		gauge(
			"annex_memory_budget_waiting_requests",
			"Requests that wait for memory.",
			func(s budget.Stats) float64 { return float64(s.Waiting) },
		),
		prometheus.NewCounterFunc(
			prometheus.CounterOpts{
				Name: "annex_memory_budget_refused_requests_total",
				Help: "Requests rejected with 429 because no memory became free in time.",
			},
			func() float64 { return float64(b.Stats().Refused) },
		),
	}
}

// revocationMetrics are the metrics of revocation, for a server with its own certificate authority.
func revocationMetrics(c *certs.Certs) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_certificates_revoked",
			Help: "Revoked client certificates, which the server rejects.",
		}, func() float64 { revoked, _ := c.Revocations(); return float64(revoked) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "annex_certificate_revocation_failures_total",
			Help: "Failed reloads of the certificate revocation list; the previous list stays in force.",
		}, func() float64 { _, failures := c.Revocations(); return float64(failures) }),
	}
}
