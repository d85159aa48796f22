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

%s
Each that says so has an etcd of its own, reached over HTTP without TLS. **All writes are synced** to disk before they
are acknowledged, by etcd and by the embedded storage.

The same client asks all of them, each directly over TLS and HTTP/2, with no proxy in between: an administrator
(system:masters) known by an ECDSA client certificate, so that no server asks another whether he may. He sends and takes JSON,
uncompressed, in v1alpha1, of flunders of %s bytes. Each client has a connection of its own, watchers one for %d. Clients and
servers share the machine; the clients' processor time is not counted, that of servers and etcd is (utime and stime of
/proc/PID/stat). Updates send the whole object with its resource version; patches, of each kind, and applies change one annotation.
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

`, time.Since(b.began).Round(time.Second), b.compared(), number(float64(b.objectSize)), watchesPerConnection, s.rounds, s.duration,
		m.processor, m.processors, m.memory, m.kernel, m.fileSystem, b.loadBefore, b.loadAfter, m.goVersion,
		b.versions["wardle"], b.versions["sample-apiserver"], b.versions["kube-apiserver"], b.versions["etcd"])
	if s.short {
		fmt.Fprint(w, "**With -short: once, shortly, with a tenth of the objects. These figures show that it runs.**\n\n")
	}
	if len(b.failures) > 0 {
		fmt.Fprintf(w, "**Not all could be measured:**\n\n- %s\n\n", strings.Join(b.failures, "\n- "))
	}
	b.aims(w)
	if s.has(partProfiles) {
		fmt.Fprint(w, "Where the processor time of Annex goes: flame graphs of [create](flame-create.svg), [get](flame-get.svg),\n"+
			"[update](flame-update.svg), [merge patch](flame-merge-patch.svg) and [1,000 watches](flame-watch.svg); green is Annex,\n"+
			"blue Kubernetes' libraries, orange HTTP, pink TLS.\n\n")
	}
	if s.has(partRequests) {
		b.writeRequests(w)
	}
	if s.has(partLists) {
		b.writeLists(w)
	}
	if s.has(partWatch) || s.has(partIdle) {
		b.writeWatches(w)
	}
	b.writeProcesses(w)
	b.writeBursts(w)
	b.writeLarge(w)
}

// compared describes the measured servers.
func (b *bench) compared() string {
	var list strings.Builder
	for _, p := range []struct{ peer, text string }{
		{embedded, "**Annex, embedded**: the project's [sample](../../samples/wardle), alone, with its stock settings: `wardle serve`."},
		{annexed, "**Annex, etcd**: the same with `--storage etcd` and upstream's watch cache."},
		{sample, "**sample-apiserver, etcd**: upstream's, with its stock settings, joined to a kube-apiserver that only it asks."},
		{crd, "**CRD, etcd**: the same kind as a CustomResourceDefinition of kube-apiserver, another one, with its stock settings."},
		{bare, "**bare Go server**: [bare](../../bench/peers/bare), TLS, HTTP/2 and JSON in Go as the others have them, and nothing else: no " +
			"callers, no\n  storage, no rules. Reads are answered with the same bytes every time, the body of a write is decoded and an answer " +
			"encoded. It is how far one\n  can get."},
		{synced, "**bare Go server, synced**: the same, with one file that what is written is appended to, over zeroes, and synced before " +
			"the answer; writes that\n  come during a sync share the next one. It is how far one can get who loses nothing, on this disk."},
	} {
		if b.settings.measures(p.peer) {
			fmt.Fprintf(&list, "- %s\n", p.text)
		}
	}
	return list.String()
}

// aim is a target for a figure of Annex on its embedded storage: a factor relative to upstream's sample, or a
// maximum.
type aim struct {
	label string
	line  line
	times float64
	most  float64 // if it is not 0
}

// wantedOf are the target factors of each kind of request: its rate and its processor time with 64 clients, and the
// time of a single client's request.
var wantedOf = map[string]struct{ rate, cost, alone float64 }{
	"create":      {3.5, 8, 5},
	"get":         {5, 10, 7},
	"update":      {3.5, 7, 5},
	"merge patch": {3.5, 8, 5},
	"JSON patch":  {3.5, 8, 5},
	"apply":       {3.5, 8, 5},
	"delete":      {5, 9, 6},
}

func (b *bench) allAims() []aim {
	var aims []aim
	s := b.settings
	if s.has(partRequests) {
		for _, op := range operations {
			cell, wanted := requestsCell(op.name, 64), wantedOf[op.name]
			aims = append(aims,
				aim{op.name + ": rate, 64 clients", line{"", cell, "req/s", true}, wanted.rate, 0},
				aim{op.name + ": processor time of a request, 64 clients", line{"", cell, "cpu-us/req", false}, wanted.cost, 0})
		}
		for _, op := range operations {
			aims = append(aims, aim{op.name + ": p50, one client", line{"", requestsCell(op.name, 1), "p50-ms", false}, wantedOf[op.name].alone, 0})
		}
	}
	if s.has(partLists) {
		aims = append(aims,
			aim{fmt.Sprintf("list of %s: processor time", number(float64(s.objects))), line{"", "list=all", "cpu-us/req", false}, 20, 0},
			aim{"1 % of them, by a label: processor time", line{"", "list=selector", "cpu-us/req", false}, 20, 0})
	}
	if s.has(partMany) {
		aims = append(aims,
			aim{fmt.Sprintf("list of %s: processor time", number(float64(s.many))), line{"", "list=many", "cpu-us/req", false}, 10, 0},
			aim{"in pages of 500: processor time", line{"", "list=pages", "cpu-us/req", false}, 5, 0})
	}
	if s.has(partWatch) {
		aims = append(aims,
			aim{"1,000 watchers, paced: processor time of an event", line{"", "watch=paced/watchers=1000", "cpu-us/event", false}, 4, 0},
			aim{"1,000 watchers, burst: processor time of an event", line{"", "watch=burst/watchers=1000", "cpu-us/event", false}, 5, 0})
	}
	if s.has(partIdle) {
		aims = append(aims, aim{"an idle watch, KB", line{"", "watch=idle", "KB/watch", false}, 0, 12})
	}
	aims = append(aims,
		aim{"before the first object: anonymous memory, MB", line{"", "memory=empty", "anonymous-MB", false}, 0, 14},
		aim{"before the first object: memory of files, MB", line{"", "memory=empty", "file-MB", false}, 0, 40})
	if s.has(partChurn) {
		aims = append(aims, aim{"memory after objects have come and gone", line{"", "memory=churned", "total-MB", false}, 4, 0})
	}
	if s.has(partLarge) {
		all := number(float64(s.all)) + " objects of 2 KB: "
		aims = append(aims,
			aim{all + "MB", line{"", "large=held", "server-MB", false}, 0, 700},
			aim{all + "a list, MB more", line{"", "large=list", "more-MB", false}, 0, 20},
			aim{all + "20 lists at once, MB more", line{"", "large=lists", "more-MB", false}, 0, 200},
			aim{all + "8 tables at once, MB more", line{"", "large=tables", "more-MB", false}, 0, 1000},
			aim{all + "8 lists to be read by people at once, MB more", line{"", "large=pretty", "more-MB", false}, 0, 1000})
	}
	if s.has(partMillion) {
		aims = append(aims,
			aim{"1,000,000 objects: from exec to the first page, s", line{"", "million", "page-s", false}, 0, 4},
			aim{"1,000,000 objects: MB", line{"", "million", "loaded-MB", false}, 0, 2048},
			aim{"1,000,000 objects: MB after a restart", line{"", "million", "restarted-MB", false}, 0, 2048})
	}
	return aims
}

func (b *bench) aims(w io.Writer) {
	fmt.Fprint(w, "## Aims\n\nAgainst sample-apiserver with etcd. What costs less is a factor as well: 3x is a third. What is in reach on "+
		"this machine is\nwhat the bare Go server gets, synced where something is written. [Limits](limits.md) says of what is not reached "+
		"why.\n\n| | aim | Annex, embedded | reached | in reach | Annex, etcd |\n|---|---:|---:|---|---:|---:|\n")
	for _, a := range b.allAims() {
		wanted, got, onEtcd := factor(a.times), b.results.better(a.line, embedded, sample), factor(b.results.better(a.line, annexed, sample))
		text, reached, inReach := factor(got), got >= a.times, factor(b.results.better(a.line, synced, sample))
		if inReach == "" {
			inReach = factor(b.results.better(a.line, bare, sample))
		}
		if a.most != 0 {
			got = b.results.median(a.line.measurement, embedded, a.line.unit)
			wanted, text, onEtcd = "at most "+number(a.most), number(got), number(b.results.median(a.line.measurement, annexed, a.line.unit))
			reached = got <= a.most
		}
		verdict := "no"
		switch {
		case math.IsNaN(got):
			verdict = ""
		case reached:
			verdict = "yes"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", a.label, wanted, text, verdict, inReach, onEtcd)
	}
	fmt.Fprintln(w)
}

// writeBefore compares an older build with the present one, by the lines of all aims.
func (b *bench) writeBefore(w io.Writer) {
	fmt.Fprintf(w, `# Annex before and now

Written by `+"`make bench-peers BEFORE=program`"+` in the run of [peers.md](peers.md). Do not edit: run it. Before is the build %s of
the same sample. Both were measured in turn, beside all other servers. Factors above 1 are in favour of Annex, or of now.

| | sample-apiserver, etcd | before | now | before against sample | now against sample | now against before |
|---|---:|---:|---:|---:|---:|---:|
`, b.beforeOf)
	for _, a := range b.allAims() {
		row := []string{a.label}
		for _, peer := range []string{sample, embeddedBefore, embedded} {
			row = append(row, number(b.results.median(a.line.measurement, peer, a.line.unit)))
		}
		for _, pair := range [][2]string{{embeddedBefore, sample}, {embedded, sample}, {embedded, embeddedBefore}} {
			row = append(row, factor(b.results.better(a.line, pair[0], pair[1])))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
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
	if b.settings.has(partMany) {
		many := number(float64(b.settings.many))
		for _, l := range []struct{ cell, label string }{{"list=many", "all " + many + ": "}, {"list=pages", many + " in pages of 500: "}} {
			lines = append(lines,
				line{l.label + "p50, ms", l.cell, "p50-ms", false}, line{l.label + "CPU us each", l.cell, "cpu-us/req", false})
		}
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
	if b.settings.has(partIdle) {
		label := fmt.Sprintf("%s watches that nothing comes from: KB each", number(float64(b.settings.idle)))
		lines = append(lines, line{label, "watch=idle", "KB/watch", false},
			line{"2,000 watches that never read, while an object is changed 500 times: KB each", deafCell, "KB/watch", false},
			line{"a change meanwhile: p50, ms", deafCell, "p50-ms", false}, line{"a change meanwhile: p99, ms", deafCell, "p99-ms", false})
	}
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
		fmt.Fprint(w, "## Restarts\n\nAfter kill -9: from exec until /readyz answers 200, and until a list of all objects has been read, "+
			"which a server may refuse with 429 for a while. Only the server is restarted: etcd\nstays up, and so does the kube-apiserver that "+
			"the sample asks.\n\n")
		for _, objects := range []int{0, s.objects} {
			cell, label := fmt.Sprintf("restart/objects=%d", objects), "no objects: "
			if objects > 0 {
				label = number(float64(objects)) + " objects: "
			}
			lines = append(
				lines,
				line{label + "ready, s", cell, "ready-s", false},
				line{label + "listed, s", cell, "list-s", false},
				line{label + "CPU s", cell, "cpu-s", false},
			)
		}
		b.results.table(w, lines)
	}
	fmt.Fprintf(w, "## Memory\n\nWhat is resident, in MB: before the first object, %s after the start, at the end with %s objects, after "+
		"the restart that follows, and\nafter %s in which each created, changed and deleted %d objects a second, of which %d were alive at a "+
		"time. That of the kube-apiserver without which the sample does not run is not counted.\n\n", restTime, number(float64(s.objects)),
		s.churn, churnRate, churnClients*churnAlive)
	lines = nil
	for _, when := range []struct{ cell, label string }{{"empty", "before: "}, {"used", "at the end: "}, {"restarted", "restarted: "},
		{"churned", "after coming and going: "}} {
		lines = append(lines,
			line{when.label + "server", "memory=" + when.cell, "server-MB", false},
			line{when.label + "server, anonymous", "memory=" + when.cell, "anonymous-MB", false},
			line{when.label + "server, of files", "memory=" + when.cell, "file-MB", false},
			line{when.label + "etcd", "memory=" + when.cell, "store-MB", false},
			line{when.label + "both", "memory=" + when.cell, "total-MB", false})
	}
	b.results.table(w, lines)
}

// writeLarge writes the measurements of Annex alone.
func (b *bench) writeLarge(w io.Writer) {
	s := b.settings
	if s.has(partLarge) {
		fmt.Fprintf(w, "## Very many objects\n\nAnnex alone, %s objects of 2 KB: what is resident, and how much more at most while clients "+
			"list all of them at once. A client that is answered 429 asks again after a second.\n\n", number(float64(s.all)))
		lines := []line{
			{"resident right after they were created, MB", "large=held", "filled-MB", false},
			{"resident 15 s later, MB", "large=held", "server-MB", false},
		}
		for _, l := range []struct{ cell, label string }{
			{"large=list", "one list"}, {"large=lists", "20 lists"}, {"large=tables", "8 tables"}, {"large=pretty", "8 lists to be read by people"},
		} {
			lines = append(lines, line{l.label + ": MB more", l.cell, "more-MB", false}, line{l.label + ": all answered, s", l.cell, "s", false})
		}
		b.results.table(w, lines)
	}
	if s.has(partMillion) {
		fmt.Fprintf(w, "## A million objects\n\nAnnex alone, objects of about 1 KB, created by %d clients.\n\n", loaders)
		b.results.table(w, []line{
			{fmt.Sprintf("creates/s, the first %s", number(float64(s.objects))), "million", "first-creates/s", true},
			{fmt.Sprintf("creates/s, the last %s", number(float64(s.objects))), "million", "last-creates/s", true},
			{"resident, MB", "million", "loaded-MB", false},
			{"restarted: ready, s", "million", "ready-s", false},
			{"restarted: first page of 500, s", "million", "page-s", false},
			{"restarted: resident, MB", "million", "restarted-MB", false},
		})
	}
}
