package direct

import "github.com/prometheus/client_golang/prometheus"

// Answers counts what was answered directly, by verb. Nil counts nothing. Its methods may be called concurrently.
type Answers struct {
	total  *prometheus.CounterVec
	byVerb map[string]prometheus.Counter
}

// NewAnswers returns a count of nothing yet.
func NewAnswers() *Answers {
	a := &Answers{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_direct_answers_total",
			Help: "Requests that were answered without upstream's handlers: gets and writes of an object, lists as they are stored, watches " +
				"that wrote events by themselves.",
		}, []string{"verb"}),
		byVerb: map[string]prometheus.Counter{},
	}
	for _, verb := range []string{"create", "delete", "get", "list", "patch", "update", "watch"} {
		a.byVerb[verb] = a.total.WithLabelValues(verb)
	}
	return a
}

// Collector is what /metrics shows.
func (a *Answers) Collector() prometheus.Collector { return a.total }

// Count counts a request with a verb.
func (a *Answers) Count(verb string) {
	if a == nil {
		return
	}
	if counter, ok := a.byVerb[verb]; ok {
		counter.Inc()
	}
}
