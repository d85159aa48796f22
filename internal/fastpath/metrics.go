package fastpath

import "github.com/prometheus/client_golang/prometheus"

// counters are the counters of a gate.
type counters struct {
	answers, declines *prometheus.CounterVec
	byRoute           map[Route]prometheus.Counter
}

func newCounters() *counters {
	c := &counters{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_fast_path_answered_total",
			Help: "Requests that were answered without upstream's handlers, by route. " +
				"The route items counts lists that upstream's handlers answered without their items.",
		}, []string{"route"}),
		declines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_fast_path_declined_total",
			Help: "Requests for resources that upstream's handlers answered, by verb and by the reason for which the fast path declined them.",
		}, []string{"verb", "reason"}),
		byRoute: map[Route]prometheus.Counter{},
	}
	for route, name := range names {
		c.byRoute[route] = c.answers.WithLabelValues(name)
	}
	return c
}

// Collectors returns the metrics of the gate.
func (g *Gate) Collectors() []prometheus.Collector {
	return []prometheus.Collector{g.counters.answers, g.counters.declines}
}

// CountAnswer counts the request as answered. It is called once, before the answer is written.
func (d *Decision) CountAnswer() { d.gate.counters.byRoute[d.Route].Inc() }

// Decline counts the request as declined, for a reason.
func (d *Decision) Decline(reason Reason) {
	if d.Info == nil { // a request for no resource
		return
	}
	verb := d.Info.Verb
	if d.verb == Upstream && verb != "deletecollection" {
		verb = "other" // for example HEAD, whose request info has the verb get
	}
	d.gate.counters.declines.WithLabelValues(verb, string(reason)).Inc()
}
