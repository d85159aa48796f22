package fastpath

import "github.com/prometheus/client_golang/prometheus"

// gateMetrics are the metrics of a gate.
type gateMetrics struct {
	answers, declines *prometheus.CounterVec
	byRoute           map[Route]prometheus.Counter
}

func newMetrics() *gateMetrics {
	m := &gateMetrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_fast_path_answered_total",
			Help: "Requests that the server answered without upstream's handlers, by route. The route items counts lists that upstream's " +
				"handlers answered with items of the fast path.",
		}, []string{"route"}),
		declines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_fast_path_declined_total",
			Help: "Requests for resources that upstream's handlers answered, by verb and by the reason why the fast path declined them.",
		}, []string{"verb", "reason"}),
		byRoute: map[Route]prometheus.Counter{},
	}
	for route, name := range names {
		m.byRoute[route] = m.answers.WithLabelValues(name)
	}
	return m
}

// Collectors returns the metrics of the gate.
func (g *Gate) Collectors() []prometheus.Collector {
	return []prometheus.Collector{g.metrics.answers, g.metrics.declines}
}

// CountAnswer counts the request as answered. It is called once, before the answer is written.
func (d *Decision) CountAnswer() { d.gate.metrics.byRoute[d.Route].Inc() }

// Decline counts the request as declined, for a reason. Gate.Wrap calls it before upstream's handlers answer, and an
// Answerer for a list that they have answered without items to fill in.
func (d *Decision) Decline(reason Reason) {
	if d.Info == nil { // a request for no resource
		return
	}
	verb := d.Info.Verb
	if d.verb == Upstream && verb != "deletecollection" {
		verb = "other" // for example HEAD, whose request info has the verb get
	}
	d.gate.metrics.declines.WithLabelValues(verb, string(reason)).Inc()
}
