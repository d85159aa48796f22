# The commands of this repository. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

KUBECTL := $(or $(shell command -v kubectl),bin/kubectl)
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
TESTED := . cmd/annex cmd/kubectl-annex samples/animal samples/wardle samples/sqltable samples/ownjournal samples/cicd samples/restaurant samples/devops workloads release docs/site e2e/attack
# What no other module imports, with libraries of its own: a third of what compilers and linkers do for the tests.
TOOL := cmd/annex cmd/kubectl-annex workloads release
BESIDE := e2e store/etcd/etcdtest bench
MODULES := $(TESTED) $(BESIDE)
# The packages of modules of the workspace, for one command: packages that several need are loaded once, and no processor waits
# for the last package of a module.
packages = ./... $(patsubst %,./%/...,$(filter-out .,$(1)))
# Outside go.work, for they would raise the libraries of the others.
APART := e2e/cluster e2e/conformance e2e/ginkgo bench/peers internal/testing/lint

# kubectl version parses the version that a release build sets.
KUBECTL_VERSION := -s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2 \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# Tests as go test prints them. Up to three that fail are run once more, each alone: those that pass then are defects too
# (docs/maintaining/flaky.md), are named at the end, and written to the file FLAKY if that is set. A data race is never tried again.
# The linker leaves out what only debuggers read, which takes it half of its time. Tests of servers wait more than they compute:
# four at a time leave no processor idle.
tested = ( reruns=$$(mktemp) && trap 'rm -f "$$reruns"' EXIT && go run $(GOTESTSUM) --format standard-quiet --hide-summary=skipped \
	--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race --rerun-fails-report "$$reruns" \
	--packages "$(1)" -- -ldflags=-s -parallel 4 $(2) && { [ ! -s "$$reruns" ] || { echo "These tests failed, and passed when run once more, alone:"; tee -a "$${FLAKY:-/dev/null}" < "$$reruns"; }; } )

.PHONY: run
run: $(filter bin/%,$(KUBECTL)) ## serve the wardle sample from ./data until interrupted
	@echo "building, which takes some minutes the first time"
	go run ./samples/wardle serve $(SERVE)

# Packages whose tests start whole servers or run commands are no part of it.
.PHONY: quick
quick: ## vet, the house tests and the unit tests of every district, within a minute: no server, no program
	@go vet ./... && go test -vet=off -short -timeout 5m $$(go list ./... | grep -vE '/(internal/testing/apitest|annextest|stream|docs)(/|$$)')

# The tests of the tool build projects without a network, from the modules that samples/animal requires outside the workspace.
.PHONY: modules
modules:
	@GOWORK=off go -C samples/animal list -deps -test ./... >/dev/null

# The tests of whole servers, which take the longest, begin as early as possible.
.PHONY: test
test: modules ## run all tests but the long ones, which have turns (WITHOUT="module..." leaves modules out)
	@$(call tested,$$(go list ./internal/testing/apitest && go list $(call packages,$(filter-out samples/% $(WITHOUT),$(TESTED))) | \
		grep -vE '/internal/testing/apitest(/controlplane)?$$'),-short -vet=off -timeout 30m) # make lint vets

# The targets that CI runs in turn, as .ci/turns says: each is some minutes.
.PHONY: test-house
test-house: ## the house tests that list the packages of all modules and link a program
	@$(call tested,.,-count=1 -vet=off -timeout 30m)

.PHONY: test-tool
test-tool: modules ## the tests of the tool, the workloads and the releases, which CI leaves out of make test if no change touches them
	@$(call tested,$(patsubst %,./%/...,$(TOOL)),-short -vet=off -timeout 30m)

.PHONY: test-scripts
test-scripts: modules ## the tool's command line, as scripts
	@$(call tested,./cmd/annex/internal/cli,-count=1 -vet=off -timeout 60m -run '^TestScripts$$')

.PHONY: test-projects
test-projects: modules ## the projects that the tool makes, built and tested
	@$(call tested,./cmd/annex/internal/cli,-count=1 -vet=off -timeout 60m -skip '^TestScripts$$')

.PHONY: test-generate
test-generate: ## what the tool generates, compared with upstream's generators
	@$(call tested,./cmd/annex/internal/generate/...,-count=1 -vet=off -timeout 30m)

.PHONY: test-imported
test-imported: ## types that the tool imports, served and compared with a CRD server
	@$(call tested,./cmd/annex/internal/crd/compared,-count=1 -vet=off -timeout 30m)

.PHONY: test-storage
test-storage: ## the suites of every storage with their faults, kills and histories
	@$(call tested,./store/... ./internal/storage/...,-count=1 -vet=off -timeout 30m)

.PHONY: test-server
test-server: ## the whole server with its random requests, full disks, memory and time limits
	@$(call tested,./internal/testing/apitest ./internal/testing/apitest/queries ./internal/wire/managed,-count=1 -vet=off -timeout 30m)

# Each binary of these two links a whole server, which takes ten seconds and more, and runs many.
.PHONY: test-samples
test-samples: ## the tests of the samples, which make lint reads
	@$(call tested,$(patsubst %,./%/...,$(filter samples/%,$(TESTED))),-count=1 -vet=off -timeout 30m)

.PHONY: test-controlplane
test-controlplane: ## whole servers with the API of a control plane
	@$(call tested,./internal/testing/apitest/controlplane,-count=1 -vet=off -timeout 30m)

# The other packages that -short shortens.
.PHONY: test-parts
test-parts: ## the long tests of packages that no other target runs in full
	@$(call tested,./internal/aggregated/... ./internal/controlplane/garbage ./internal/fastpath/writes ./internal/identity/auth ./internal/identity/login \
		./internal/model/convert ./internal/program/maintenance ./internal/server/operations ./cmd/annex/internal/crd/gotypes ./e2e/attack ./release,-count=1 -vet=off -timeout 30m)

.PHONY: docs
docs: ## run the commands of all pages, and check their links
	go test ./docs
	go -C e2e test -count=1 -timeout 30m -run 'TestPages|TestTutorial' .

# Those that are concurrent and quick. Others are raced every night.
RACED := ./internal/storage/mvcc/... ./internal/base/budget/... ./internal/identity/standing/... ./internal/storage/virtual/... ./store/... ./internal/identity/certs/... ./internal/identity/clientcert/... ./internal/model/convert/... ./internal/identity/rbac/... \
	./internal/identity/accounts/... ./internal/identity/auth/... ./internal/base/configfile/... ./internal/standalone/fairness/... ./internal/server/logfile/... ./internal/program/systemd/... \
	./internal/standalone/coreapi/... ./internal/controlplane/garbage/... ./internal/standalone/resources/... ./internal/storage/encryption/... ./internal/aggregated/cluster/... ./internal/aggregated/servingcert/... ./internal/model/informer/... ./internal/server/loopback/... \
	./internal/server/operations/... ./internal/controlplane/aggregate/... ./stream/... ./operation/...

# The race detector needs cgo, which CI leaves out.
race race-long race-all: export CGO_ENABLED = 1

.PHONY: race
race: ## run the tests of concurrent packages under the race detector, but for the long ones
	@$(call tested,$(RACED),-race -short -vet=off -timeout 30m)

.PHONY: race-long
race-long: ## run all tests of these packages under the race detector
	@$(call tested,$(RACED),-race -vet=off -timeout 60m)

.PHONY: race-all
race-all: ## run all tests under the race detector: half an hour and more
	@failed=; for m in . cmd/annex samples/wardle samples/sqltable samples/ownjournal samples/cicd samples/restaurant samples/devops store/etcd/etcdtest; do echo "race $$m"; \
	go -C $$m test -race -timeout 60m ./... || failed="$$failed $$m"; done; [ -z "$$failed" ] || { echo "races or failures in:$$failed"; exit 1; }

.PHONY: lint
lint: bin/lint ## gofmt on all files, vet and staticcheck on the modules of the workspace
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "$$unformatted"; echo "run gofmt -w on the files above"; exit 1; }
	@go run ./internal/testing/prose -check .
	@echo "lint the modules of the workspace" && $(linted) $(call packages,$(MODULES))

.PHONY: lint-deep
lint-deep: bin/lint ## the same analyzers with the facts of all dependencies: lint has those of what the modules import
	@$(linted) -deep $(call packages,$(MODULES))

.PHONY: lint-apart
lint-apart: bin/lint ## vet and staticcheck on the modules outside the workspace, and the tests of lint
	GOWORK=off go -C internal/testing/lint test ./...
	@for m in $(APART); do echo "lint $$m"; (cd $$m && GOWORK=off $(linted) ./...) || exit 1; done

# The module of lint selects its versions itself. It reads sources alone: those that need cgo have others without it.
linted = CGO_ENABLED=0 $(CURDIR)/bin/lint
.PHONY: bin/lint
bin/lint:
	@[ ! -d $@ ] || rm -r $@
	@GOWORK=off go -C internal/testing/lint build -buildvcs=false -o $(CURDIR)/$@ .

.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the vulnerability database)
	@for m in $(MODULES); do (cd $$m && go run $(GOVULNCHECK) ./...) || exit 1; done

.PHONY: foreign-suites
foreign-suites: ## the suites of other projects that use envtest, against annex envtest (PERSONALITY=like-cluster; ONLY=regex; REAL=1 for a real kube-apiserver and etcd; LOGS=dir)
	$(if $(REAL),$(MAKE) --no-print-directory bin/etcd bin/kube-apiserver bin/kubectl)
	go -C e2e run ./suites -personality '$(or $(PERSONALITY),like-envtest)' -only '$(ONLY)' $(if $(LOGS),-logs $(abspath $(LOGS))) $(if $(REAL),-assets $(CURDIR)/bin)

.PHONY: planes
planes: ## 200 control planes in one process, forks of one with 10,000 objects (PLANES=200; OBJECTS=10000)
	ANNEX_PLANES=$(or $(PLANES),200) ANNEX_PLANE_OBJECTS=$(or $(OBJECTS),10000) go test -vet=off -count=1 -v -timeout 30m -run manyForks ./workloads/envtest 2>/dev/null | grep -aE '^(ok|FAIL|panic)|^ *--- |_test\.go:'

.PHONY: ginkgo
ginkgo: ## a suite of Ginkgo in parallel processes: a control plane for each process, then a fork of it for each spec (PROCS=4; PREPARED=10000 objects)
	for forks in false true; do GOWORK=off go -C e2e/ginkgo tool ginkgo -p -procs $(or $(PROCS),4) . -- -forks=$$forks -prepared $(or $(PREPARED),1000) || exit 1; done

.PHONY: bench-start
bench-start: bin/etcd bin/kube-apiserver bin/kubectl ## start the programs of annex envtest, and a real kube-apiserver with etcd, in turn, on a quiet machine (ROUNDS=10)
	go -C e2e run ./suites -start $(or $(ROUNDS),10) -assets $(CURDIR)/bin

RELEASE := $(CURDIR)/bin/release

.PHONY: release
release: ## tag the library, module workloads, the tool and the kubectl plugin (VERSION=v0.1.0)
	GOWORK=off go -C release run . tag $(VERSION)

.PHONY: release-build
release-build: ## write the files of a tagged release into bin/release (VERSION=v0.1.0)
	GOWORK=off go -C release run . build $(VERSION) $(RELEASE)

# What a release would publish, from a clone. The name keeps it apart from a release.
.PHONY: release-output
release-output:
	GOWORK=off go -C release run . dry $(or $(VERSION),v0.1.0-dry) $(RELEASE) $(PLATFORMS)

.PHONY: release-dry
release-dry: release-output ## write what a release of HEAD would publish into bin/release, install that in an empty environment, and run the tutorial (VERSION=v0.1.0; PLATFORMS=linux/amd64 for fewer)
	GOWORK=off go -C release test -vet=off -count=1 -v -timeout 60m -run '^TestRelease_(unpack|install)$$' . -output $(RELEASE)
	go -C e2e test -vet=off -count=1 -v -timeout 60m -run '^TestPages$$/^docs/tutorial$$' . -release $(RELEASE)

.PHONY: release-try
release-try: release-output ## use that release in projects of others, too: kubebuilder, envtest, cert-manager, gateway-api, cluster-api (VERSION=v0.1.0)
	GOWORK=off go -C release test -vet=off -count=1 -v -timeout 120m -run '^TestRelease_(unpack|install)$$' . -output $(RELEASE) -all

.PHONY: site
site: ## write the pages as a web site into bin/site, which opens from its files
	@go -C docs/site run . -root $(CURDIR) -out $(CURDIR)/bin/site

.PHONY: demo
demo: bin/kubectl ## record the commands of the README anew, as docs/images/demo.svg, on a quiet machine
	go -C cmd/annex build -ldflags '-s -w' -o $(CURDIR)/bin/annex .
	go -C cmd/kubectl-annex build -ldflags '-s -w' -o $(CURDIR)/bin/kubectl-annex .
	go -C docs/site run ./demo -path $(CURDIR)/bin -out $(CURDIR)/docs/images/demo.svg demo/first.scene

.PHONY: generate
generate: ## write all generated files anew, and the tables of flags in docs/reference
	go -C cmd/annex run . generate ../../internal/testing/shop/... ../../operation/... ../../samples/wardle/apis/... ../../samples/sqltable/apis/... ../../samples/ownjournal/apis/... ../../samples/cicd/apis/... ../../samples/restaurant/apis/... ../../e2e/apis/...
	$(MAKE) -C samples/devops generate ANNEX='go run github.com/annexapi/annex/cmd/annex'
	cd cmd/annex && for group in admissionregistration authentication authorization coordination core events flowcontrol rbac storagemigration; do \
		go run . generate --for k8s.io/api/$$group/v1 ../../internal/model/facts/$$group || exit; done
	go -C cmd/annex run . generate --for k8s.io/api/coordination/v1beta1 ../../internal/model/facts/coordinationv1beta1
	go -C cmd/annex run . generate --for k8s.io/kube-aggregator/pkg/apis/apiregistration/v1 ../../internal/model/facts/apiregistration
	UPDATE=1 go -C cmd/annex test -count=1 -run 'SampleAnimal|Reference' ./internal/cli
	UPDATE=1 go test -count=1 -run Reference ./internal/program/cli

# What it builds is committed, so that a server needs Go alone. npm runs no scripts of packages.
CONSOLE := internal/program/console/web

.PHONY: console
console: $(CONSOLE)/node_modules ## build the console and Swagger UI anew (needs node and npm)
	cd $(CONSOLE) && npm run --silent check && npm run --silent build

.PHONY: console-check
console-check: ## look whether what is committed of the console is what its sources give
	@if command -v node npm >/dev/null; then $(MAKE) --no-print-directory $(CONSOLE)/node_modules && cd $(CONSOLE) && npm run --silent check && npm run --silent build -- --check; \
	else echo "node or npm is not installed: the console is not checked"; fi

$(CONSOLE)/node_modules: $(CONSOLE)/package.json $(CONSOLE)/package-lock.json
	cd $(CONSOLE) && npm ci --silent && touch node_modules

# What it uses is built where nothing else is.
BROWSER := bin/browser

.PHONY: console-test
console-test: bin/kubectl ## use the console and the explorer in a headless Chromium, if there is one (pictures are in bin/browser/shots, or SHOTS)
	@if command -v node npm >/dev/null; then mkdir -p $(BROWSER) && go build -o $(BROWSER)/cicd ./samples/cicd && go -C cmd/annex build -o $(CURDIR)/$(BROWSER)/annex . && go -C e2e build -o $(CURDIR)/$(BROWSER)/theatre ./cmd/theatre && \
		go -C samples/restaurant build -o $(CURDIR)/$(BROWSER)/restaurant . && cp bin/kubectl $(BROWSER)/kubectl && $(MAKE) --no-print-directory $(CONSOLE)/node_modules && node $(CONSOLE)/test/copyas.mjs && \
		for t in browser edits signin; do node $(CONSOLE)/test/$$t.mjs $(BROWSER) $(or $(SHOTS),$(BROWSER)/shots) || exit; done && \
		for t in short.mjs:annex explorer.mjs:restaurant; do node $(CONSOLE)/test/$${t%:*} $(BROWSER)/$${t#*:} $(or $(SHOTS),$(BROWSER)/shots) || exit; done; \
	else echo "node or npm is not installed: the console is not tested in a browser"; fi

.PHONY: console-short
console-short: ## the short path of console-test, with one server, in less than a minute
	@.ci/chromium; if command -v node npm >/dev/null; then mkdir -p $(BROWSER) && go build -o $(BROWSER)/plane ./internal/testing/plane && \
		$(MAKE) --no-print-directory $(CONSOLE)/node_modules && node $(CONSOLE)/test/short.mjs $(BROWSER)/plane $(SHOTS); \
	else echo "node or npm is not installed: the console is not tested in a browser"; fi

.PHONY: console-large
console-large: ## how long 50,000 objects (OBJECTS) take to be sorted, filtered and paged in the query API and the console
	@if command -v node npm >/dev/null; then mkdir -p $(BROWSER) && go -C cmd/annex build -o $(CURDIR)/$(BROWSER)/annex . && \
		$(MAKE) --no-print-directory $(CONSOLE)/node_modules && node $(CONSOLE)/test/large.mjs $(BROWSER)/annex $(OBJECTS); \
	else echo "node or npm is not installed: the console is not measured"; fi

.PHONY: first-run
first-run: ## how long a newcomer needs from a clone to an edited object in the console, and how many clicks (COLD=1: with empty caches)
	@if command -v node npm script >/dev/null; then $(MAKE) --no-print-directory $(CONSOLE)/node_modules && node $(CONSOLE)/test/first.mjs .; \
	else echo "node, npm or script is not installed: the first run is not measured"; fi

.PHONY: console-pictures
console-pictures: ## the pictures of the console's pages in docs/images/console, and axe's report, by console-test
	$(MAKE) console-test SHOTS=docs/images/console

.PHONY: web-test
web-test: ## use the page of samples/restaurant in a headless Chromium, if there is one (not in CI)
	@if command -v node npm >/dev/null; then mkdir -p $(BROWSER) && go -C samples/restaurant build -o $(CURDIR)/$(BROWSER)/restaurant . && \
		cd samples/restaurant/web && npm ci --silent && npm run --silent check && npm run --silent build && node test.mjs $(CURDIR)/$(BROWSER)/restaurant; \
	else echo "node or npm is not installed: the pages are not tested in a browser"; fi

.PHONY: protobuf-proof
protobuf-proof: ## all of k8s.io/api with generated protobuf methods, compared with gogo's; its decoders fuzzed for 60 s
	ANNEX_PROTOBUF_PROOF=all go -C cmd/annex test -count=1 -v -timeout 60m -run 'TestProtobuf_' ./internal/generate
	go -C cmd/annex test -count=1 -run '^$$' -fuzz FuzzUnmarshal -fuzztime 60s -fuzzminimizetime 20x ./internal/generate/protobuf

SUMMARY := grep -aE '^(ok|FAIL|--- FAIL|panic)|(storage|restart) suite|api suite|^(etcd|kine on [A-Za-z]*) faults:|^watches:|--- SKIP: .*Kine|is not installed|^(crash|faults|linearizability) \('

.PHONY: storage
storage: ## the storage suites on every backend, with their summary lines
	go test -count=1 -timeout 30m -v ./store/... ./internal/storage/mvcc ./internal/storage/virtual | $(SUMMARY)
	go -C store/etcd/etcdtest test -count=1 -timeout 60m -v . | $(SUMMARY)
	ANNEX_TEST_STORAGE=embedded go test -count=1 -timeout 30m ./internal/testing/apitest | $(SUMMARY)
	ANNEX_TEST_STORAGE=files go test -count=1 -timeout 30m ./internal/testing/apitest | $(SUMMARY)

.PHONY: crash
crash: ## kill -9 under 64 writers, 500 times over each durable journal
	ANNEX_CRASH_KILLS=$(or $(ANNEX_CRASH_KILLS),500) go test -p 1 ./store/... -run 'KilledProcess|AfterKills' -count=1 -v -timeout 60m | $(SUMMARY)

.PHONY: etcd-faults
etcd-faults: ## three replicas over three etcd members, one of which is lost, 60 times
	ANNEX_ETCD_FAULTS=$(or $(ANNEX_ETCD_FAULTS),60) go -C store/etcd/etcdtest test -count=1 -v -run Cluster_ -timeout 60m . | $(SUMMARY)

.PHONY: kine
kine: bin/kine ## the etcd tests on kine over SQLite and PostgreSQL (Debian: apt-get install postgresql)
	ANNEX_KINE=$(CURDIR)/bin/kine go -C store/etcd/etcdtest test -count=1 -v -run Kine -timeout 30m . | $(SUMMARY)

# kine is a program beside ours, and no dependency: its module is not in go.work, for
# that would raise its libraries to our versions of etcd and Kubernetes.
bin/kine: store/etcd/etcdtest/kine/go.mod
	GOWORK=off go -C store/etcd/etcdtest/kine build -o $(CURDIR)/bin/kine github.com/k3s-io/kine

.PHONY: faults
faults: ## thousands of injected faults, histories and recoveries over each journal
	ANNEX_POWER_CUTS=$(or $(ANNEX_POWER_CUTS),1000) ANNEX_BIT_FLIPS=$(or $(ANNEX_BIT_FLIPS),5000) \
	ANNEX_DISK_ERRORS=$(or $(ANNEX_DISK_ERRORS),3000) ANNEX_RECOVERIES=$(or $(ANNEX_RECOVERIES),500) \
	ANNEX_HISTORIES=$(or $(ANNEX_HISTORIES),1000) ANNEX_HISTORY_KILLS=$(or $(ANNEX_HISTORY_KILLS),200) \
	go test -p 1 ./store/... -run 'Fault|Linearizable|Error|[Pp]owerCut|[Ff]lippedBit|Handles' -count=1 -v -timeout 120m | $(SUMMARY)

.PHONY: e2e
e2e: cluster bin/kine ## kubectl, controller-runtime and informers against the samples, alone and in a real cluster
	go -C e2e test -vet=off -count=1 -timeout 60m ./...

.PHONY: kinds
kinds: ## serve, write and read every kind of k8s.io/api; CI does so with those of three packages
	go -C e2e test -vet=off -count=1 -timeout 60m -v ./everykind -kinds all | grep -aE '^(ok|FAIL|panic)|^ *--- |_test\.go:'

# The module is not in go.work, for it would raise the libraries of the others to those
# of three large projects. Building it anew takes minutes.
.PHONY: compat
compat: ## serve types of cert-manager, gateway-api and cluster-api, compared with a CRD server
	go -C cmd/annex build -o ../../compat/facts/annex .
	cd compat && export GOWORK=off && for facts in certmanager=github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1 \
		gateway=sigs.k8s.io/gateway-api/apis/v1 cluster=sigs.k8s.io/cluster-api/api/core/v1beta2; do \
		facts/annex generate --for "$${facts#*=}" "./facts/$${facts%%=*}" || exit; done
	GOWORK=off go -C compat test -tags compat -count=1 -v . | grep -aE '^(ok|FAIL|panic)|--- FAIL|examples accepted'

.PHONY: import-crds
import-crds: ## import the definitions of other projects as Go types, serve these, and compare with a CRD server (not in CI; PROJECTS=rook,keda, or NAME=PATTERN of files)
	ANNEX_IMPORT_CRDS='$(or $(PROJECTS),all)' go -C cmd/annex test -vet=off -count=1 -v -timeout 180m -run ImportedTypes_projects ./internal/crd/compared | grep -aE '^(ok|FAIL|panic)|^ *--- |_test\.go:'

# Its module and those that pin the programs are not in go.work either. Building the
# programs takes minutes, once for each version.
CLUSTER := bin/etcd bin/kube-apiserver bin/kube-controller-manager bin/sample-apiserver

.PHONY: cluster
cluster: $(CLUSTER) bin/kubectl ## join a real kube-apiserver, beside upstream's sample API server (not in CI)
	cd e2e/cluster && export GOWORK=off && go test -vet=off -count=1 -v -timeout 30m $$(go list ./... | grep -vE '/(foreign|kinds)$$') | grep -aE '^(ok|FAIL|panic|cluster:|logs,)|^ *--- |_test\.go:'

.PHONY: foreign
foreign: $(CLUSTER) ## 1,000 random sequences of requests, and what other projects ship, on annex serve and on a kube-apiserver (SEED=1 for the same again)
	ANNEX_SEQUENCES=$(or $(ANNEX_SEQUENCES),1000) ANNEX_SEQUENCES_SEED=$(SEED) GOWORK=off go -C e2e/cluster test -vet=off -count=1 -v -p 1 -timeout 90m ./sequences ./foreign | grep -aE '^(ok|FAIL|panic|logs,)|^ *--- |_test\.go:'

.PHONY: differential
differential: ## ask the fast path and upstream's handlers the same at random, with the gate on and off: reads, lists, watches, writes, filters, audit (ANNEX_REQUESTS=3000; ANNEX_SEED=1 for the same again)
	for fast in true false; do echo "fast path: $$fast"; ANNEX_TEST_FAST_PATH=$$fast ANNEX_REQUESTS=$(or $(ANNEX_REQUESTS),3000) \
		go test -vet=off -count=1 -v -timeout 60m -run 'Upstream' ./internal/testing/apitest ./internal/testing/apitest/controlplane || exit 1; done | grep -aE '^(ok|FAIL|panic)|^ *--- |_test\.go:'

.PHONY: differential-kinds
differential-kinds: bin/etcd bin/kube-apiserver ## change each field of an object of every kind in every way of writing, on annex envtest and on a kube-apiserver (ANNEX_KINDS_CHANGES=6 of each object; ANNEX_KINDS_ONLY=regex; ANNEX_KINDS_SEED=2)
	go -C cmd/annex build -ldflags '-s -w' -o $(CURDIR)/bin/annex .
	GOWORK=off go -C e2e/cluster test -vet=off -count=1 -v -timeout 120m ./kinds | grep -aE '^(ok|FAIL|panic|kinds:|logs,)|^ *--- |^ {8}|_test\.go:'

.PHONY: clients
clients: ## run commands in pods of a server with kubectl, and with the client in JavaScript, which npm installs (not in CI)
	go -C e2e test -vet=off -count=1 -v -timeout 10m -run Pods . -foreign | grep -aE '^(ok|FAIL|panic)|^ *--- |_test\.go:'

# Upstream's tests are of Kubernetes itself, and take long to link.
.PHONY: conformance
conformance: $(CLUSTER) bin/kubectl ## run Kubernetes' own tests of API machinery against annex serve and a real kube-apiserver (not in CI; ONLY=regex)
	GOWORK=off go -C e2e/conformance test -vet=off -count=1 -v -timeout 90m . -only '$(ONLY)' | grep -aE '^(ok|FAIL|panic|conformance:)|^ *--- |_test\.go:'

.PHONY: bootstrap-roles
bootstrap-roles: $(CLUSTER) ## write the roles of internal/identity/rbac anew, and what its tests expect, as a real kube-apiserver says
	UPDATE=1 GOWORK=off go -C e2e/cluster test -count=1 ./rbac

bin/etcd: e2e/cluster/etcd/go.mod
	GOWORK=off nice -n 5 go -C $(<D) build -ldflags '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3

bin/sample-apiserver: e2e/cluster/sample/go.mod
	GOWORK=off nice -n 5 go -C $(<D) build -ldflags '-s -w' -o $(CURDIR)/$@ k8s.io/sample-apiserver

# The version is that of the pin.
bin/kube-apiserver bin/kube-controller-manager: bin/%: e2e/cluster/kubernetes/go.mod
	v=$$(GOWORK=off go -C $(<D) list -m -f '{{.Version}}' k8s.io/kubernetes); GOWORK=off nice -n 5 go -C $(<D) build -ldflags "-s -w \
		-X k8s.io/component-base/version.gitVersion=$$v -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37" \
		-o $(CURDIR)/$@ k8s.io/kubernetes/cmd/$*

.PHONY: collect
collect: ## the garbage collector against its model, 2,000,000 steps (SEED=1 for the same again)
	go test -count=1 -v -timeout 60m ./internal/controlplane/garbage -run Model -steps 2000000 -seed $(or $(SEED),0)

.PHONY: soak
soak: ## informers and a manager against a minute of writes and restarts
	go -C e2e test -count=1 -v -run Informers . -soak 60s

.PHONY: bench
bench: ## start-up and storage benchmarks
	go test -run '^$$' -bench . ./internal/storage/mvcc ./store/...
	go -C samples/wardle test -run '^$$' -bench . .

.PHONY: bench-storage
bench-storage: ## measure the storage against etcd, on a quiet machine (SHORT=1: two minutes, to standard output)
	go -C bench run . $(if $(SHORT),-short,-out ../docs/benchmarks)

# Outside go.work as e2e/cluster is, whose programs it measures.
.PHONY: bench-peers
bench-peers: $(CLUSTER) ## measure Annex against upstream's sample and a CRD, on a quiet machine, half an hour (ROUNDS=3; SHORT=1: two minutes, to standard output; ONLY=part,part; BEFORE=program: an older build of the sample as well)
	GOWORK=off go -C bench/peers run . -rounds $(or $(ROUNDS),3) -only '$(ONLY)' $(if $(BEFORE),-before '$(abspath $(BEFORE))') -peers '$(PEERS)' $(if $(SHORT),-short,-out ../../docs/benchmarks)

.PHONY: bench-check
bench-check: ## compare the processor time of requests with the figures in docs/benchmarks/check.txt, in five minutes (UPDATE=1 writes them)
	GOWORK=off go -C bench/peers run . -check ../../docs/benchmarks/check.txt -rounds $(or $(ROUNDS),7) -duration 300ms $(if $(UPDATE),-update)

.PHONY: bench-growth
bench-growth: ## draw how the cost of requests grows with objects, kinds, namespaces, bindings and policies, on a quiet machine, half an hour (SHORT=1: some minutes, to standard output; ONLY=axis,axis keeps the figures of the others)
	go -C bench run ./growth -only '$(ONLY)' $(if $(SHORT),-short,-out ../docs/benchmarks)

# With LONG=1, the reviews whose answers are not read go on for a minute each.
.PHONY: attack
attack: ## attack annex serve while two callers are measured, six minutes and more, on a quiet machine (ONLY=name,name; PAGE=1 writes docs/benchmarks/attack.md; PEER=kube-apiserver attacks that instead)
	$(if $(PEER),$(MAKE) --no-print-directory bin/etcd bin/kube-apiserver)
	go -C e2e/attack run . -only '$(ONLY)' -duration $(or $(DURATION),10s) $(if $(LONG),-long) -server $(or $(PEER),annex) $(if $(PAGE),-page ../../docs/benchmarks/attack.md)

# Written by the first line, and the same in all of them.
PROFILE := cmd/annex/internal/scaffold/templates/project/server.pgo

.PHONY: pgo
pgo: ## make the profile that servers are compiled with anew, and measure what it gives against a build without, on a quiet machine, a quarter of an hour
	GOWORK=off go -C bench/peers run . -rounds 1 -only profiles -peers embedded -pgo $(CURDIR)/$(PROFILE) >/dev/null
	for s in animal cicd devops restaurant wardle; do cp $(PROFILE) samples/$$s/ || exit; done
	go build -o bin/wardle-without-profile ./samples/wardle
	GOWORK=off go -C bench/peers run . -rounds $(or $(ROUNDS),8) -duration 400ms -only requests -peers embedded,embedded-before -before $(CURDIR)/bin/wardle-without-profile

bin/kubectl: e2e/go.mod
	go -C e2e build -ldflags "$(KUBECTL_VERSION)" -o ../bin/kubectl ./cmd/kubectl
