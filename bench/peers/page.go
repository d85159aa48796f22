package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// write writes the page.
func (b *bench) write(w io.Writer) {
	s, m := b.settings, b.machine
	fmt.Fprintf(w, `# Annex and its peers

Written by `+"`make bench-peers`"+`, which runs the module [bench/peers](../../bench/peers) and took %s here. Do not
edit: run it. The values of every round are in [peers.txt](peers.txt), as Go benchmarks write them.

What is compared, each as a process of its own, all running at the same time and measured in turn:

- **Annex, embedded**: the project's [sample](../../samples/wardle), alone, with its stock settings: `+"`wardle serve`"+`.
- **Annex, etcd**: the same with `+"`--storage etcd`"+` and upstream's watch cache.
- **sample-apiserver, etcd**: upstream's, with its stock settings, joined to a kube-apiserver that only it asks.
- **CRD, etcd**: the same kind as a CustomResourceDefinition of kube-apiserver, another one, with its stock settings.

Each of the three has an etcd of its own, reached over HTTP without TLS. **All writes are synced** to disk before they
are acknowledged, by etcd and by the embedded storage.

The same client asks all of them, each directly over TLS and HTTP/2, with no proxy in between: an administrator
(system:masters) known by an ECDSA client certificate, so that no server asks another whether he may. He sends and takes JSON,
uncompressed, in v1alpha1, of flunders of %s bytes. Each client has a connection of its own, watchers one for %d. Clients and
servers share the machine; the clients' processor time is not counted, that of servers and etcd is (utime and stime of
/proc/PID/stat). Updates send the whole object with its resource version, patches are merge patches of one annotation.
The servers differ in what upstream's sample and a CRD do not have: ours answers for namespaces itself, the sample
asks kube-apiserver's informers, and a CRD has no admission plugin that looks for fischers.

Figures are medians of %d rounds, of %s for each kind of request, server and number of clients. Factors above 1 are in
favour of Annex.

| | |
|---|---|
| processor | %s, %d cores |
| memory | %s |
| kernel, file system | Linux %s, %s |
| load average before and after | %s, %s |
| Go, of the client and of Annex | %s |
| Annex | %s |
| sample-apiserver | %s |
| kube-apiserver | %s |
| etcd | %s |

`, time.Since(b.began).Round(time.Second), number(float64(b.objectSize)), watchesPerConnection, s.rounds, s.duration,
		m.processor, m.processors, m.memory, m.kernel, m.fileSystem, b.loadBefore, b.loadAfter, m.goVersion,
		b.versions["wardle"], b.versions["sample-apiserver"], b.versions["kube-apiserver"], b.versions["etcd"])
	if s.short {
		fmt.Fprint(w, "**With -short: once, shortly, with a tenth of the objects. These figures show that it runs.**\n\n")
	}
	if len(b.failures) > 0 {
		fmt.Fprintf(w, "**Not all could be measured:**\n\n- %s\n\n", strings.Join(b.failures, "\n- "))
	}
	b.aims(w)
	if s.has(partRequests) {
		b.writeRequests(w)
	}
	if s.has(partLists) {
		b.writeLists(w)
	}
	if s.has(partWatch) {
		b.writeWatches(w)
	}
	b.writeProcesses(w)
}

// aim is a figure of Annex on its embedded storage against upstream's sample.
type aim struct {
	label string
	line  line
	times float64
}

func (b *bench) aims(w io.Writer) {
	var aims []aim
	s := b.settings
	if s.has(partRequests) {
		for _, op := range operations {
			rate, cost := 3.0, 3.0
			if op.name == "update" || op.name == "patch" {
				rate, cost = 2, 2
			}
			cell := requestsCell(op.name, 64)
			aims = append(aims,
				aim{op.name + ": rate, 64 clients", line{"", cell, "req/s", true}, rate},
				aim{op.name + ": processor time of a request, 64 clients", line{"", cell, "cpu-us/req", false}, cost})
		}
		for _, op := range operations {
			aims = append(aims, aim{op.name + ": p50, one client", line{"", requestsCell(op.name, 1), "p50-ms", false}, 3})
		}
	}
	if s.has(partLists) {
		aims = append(aims, aim{fmt.Sprintf("list of %s: rate", number(float64(s.objects))), line{"", "list=all", "req/s", true}, 2})
	}
	if s.has(partWatch) {
		for _, how := range []string{"paced", "burst"} {
			aims = append(aims, aim{"1,000 watchers, " + how + ": processor time of an event", line{"", "watch=" + how + "/watchers=1000", "cpu-us/event", false}, 2})
		}
	}
	aims = append(aims, aim{"memory, server and store, after all of it", line{"", "memory=used", "total-MB", false}, 2})

	fmt.Fprint(w, "## Aims\n\nAgainst sample-apiserver with etcd. What costs less is a factor as well: 3x is a third.\n\n| | aim | Annex, embedded | reached | Annex, etcd |\n|---|---:|---:|---|---:|\n")
	for _, a := range aims {
		got := b.results.better(a.line, embedded, sample)
		reached := "no"
		switch {
		case math.IsNaN(got):
			reached = ""
		case got >= a.times:
			reached = "yes"
		}
		fmt.Fprintf(w, "| %s | %gx | %s | %s | %s |\n", a.label, a.times, factor(got), reached, factor(b.results.better(a.line, annexed, sample)))
	}
	fmt.Fprintln(w)
}

func (b *bench) writeRequests(w io.Writer) {
	fmt.Fprint(w, "## Single objects\n\n")
	for _, op := range operations {
		fmt.Fprintf(w, "### %s\n\n", op.name)
		var lines []line
		for _, clients := range clientCounts {
			cell, who := requestsCell(op.name, clients), fmt.Sprintf("%d clients: ", clients)
			if clients == 1 {
				who = "1 client: "
			}
			lines = append(lines,
				line{who + "requests/s", cell, "req/s", true},
				line{who + "p50, ms", cell, "p50-ms", false},
				line{who + "p99, ms", cell, "p99-ms", false},
				line{who + "CPU us each", cell, "cpu-us/req", false})
		}
		b.results.table(w, lines)
	}
}

func (b *bench) writeLists(w io.Writer) {
	all := number(float64(b.settings.objects))
	fmt.Fprintf(w, "## Lists\n\nOf a namespace with %s objects, without a resource version, by one client.\n\n", all)
	var lines []line
	for _, l := range []struct{ cell, label string }{{"list=all", "all " + all + ": "}, {"list=selector", "1 %, by a label: "}} {
		lines = append(lines,
			line{l.label + "lists/s", l.cell, "req/s", true}, line{l.label + "p50, ms", l.cell, "p50-ms", false},
			line{l.label + "p99, ms", l.cell, "p99-ms", false}, line{l.label + "CPU us each", l.cell, "cpu-us/req", false},
			line{l.label + "MB", l.cell, "MB", false})
	}
	b.results.table(w, lines)
}

func (b *bench) writeWatches(w io.Writer) {
	fmt.Fprintf(w, `## Watches

Merge patches of watched objects; the processor time of these writes is part of the events'. Paced: one writer, at a fixed
rate. Burst: %d writers, as fast as they can. Latency counts from the moment before the patch is sent. Every watcher of
every measurement has received every change exactly once and in order; one that a server ended resumes where it was,
and the table says how many did.

`, burstWriters)
	var lines []line
	for _, f := range b.settings.fanOuts() {
		label := fmt.Sprintf("%s watchers, paced: ", number(float64(f.watchers)))
		if f.burst {
			label = fmt.Sprintf("%s watchers, burst: ", number(float64(f.watchers)))
		}
		label = strings.Replace(label, "1.00 watchers", "1 watcher", 1)
		lines = append(lines,
			line{label + "events/s", f.cell(), "events/s", true}, line{label + "p50, ms", f.cell(), "p50-ms", false},
			line{label + "p99, ms", f.cell(), "p99-ms", false}, line{label + "CPU us per event", f.cell(), "cpu-us/event", false})
		if f.burst {
			lines = append(lines, line{label + "watches ended by the server", f.cell(), "resumed", false})
		}
	}
	b.results.table(w, lines)
}

func (b *bench) writeProcesses(w io.Writer) {
	s := b.settings
	var lines []line
	if s.has(partRestart) {
		fmt.Fprint(w, "## Restarts\n\nAfter kill -9: from exec until /readyz answers 200, and until a list of all objects has been read, which a server may refuse with 429 for a while. Only the server is restarted: etcd\nstays up, and so does the kube-apiserver that the sample asks.\n\n")
		for _, objects := range []int{0, s.objects} {
			cell, label := fmt.Sprintf("restart/objects=%d", objects), "no objects: "
			if objects > 0 {
				label = number(float64(objects)) + " objects: "
			}
			lines = append(lines, line{label + "ready, s", cell, "ready-s", false}, line{label + "listed, s", cell, "list-s", false}, line{label + "CPU s", cell, "cpu-s", false})
		}
		b.results.table(w, lines)
	}
	fmt.Fprintf(w, "## Memory\n\nWhat is resident, in MB: before the first object, at the end with %s objects, and after the restart that follows.\nThat of the kube-apiserver without which the sample does not run is not counted.\n\n", number(float64(s.objects)))
	lines = nil
	for _, when := range []struct{ cell, label string }{{"empty", "before: "}, {"used", "at the end: "}, {"restarted", "restarted: "}} {
		lines = append(lines,
			line{when.label + "server", "memory=" + when.cell, "server-MB", false},
			line{when.label + "etcd", "memory=" + when.cell, "store-MB", false},
			line{when.label + "both", "memory=" + when.cell, "total-MB", false})
	}
	b.results.table(w, lines)
}
