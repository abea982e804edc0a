# Sluice: `make run` starts everything, `make test` tests it.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export CGO_ENABLED := 0
GO         ?= go
GOFILES    := $(shell find cmd pkg deploy -type f 2>/dev/null | grep -E '\.(go|sql|html|js|css|svg|yaml|json)$$') go.mod go.sum
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

# The ClickHouse engine: one shared library, shipped by npm for four platforms.
ENGINE_VERSION  := 26.7.3-stable.1
ENGINE_PLATFORM := $(shell case "$$(uname -s)/$$(uname -m)" in \
	(Linux/x86_64) echo linux-x64-gnu;; (Linux/aarch64|Linux/arm64) echo linux-arm64-gnu;; \
	(Darwin/arm64) echo darwin-arm64;; (Darwin/x86_64) echo darwin-x64;; esac)
ENGINE_PACKAGE := @chdb/lib-$(ENGINE_PLATFORM)
ENGINE_LOCK := deploy/engine/$(ENGINE_PLATFORM)
ENGINE_DIR := .cache/clickhouse
ENGINE     := $(ENGINE_DIR)/node_modules/$(ENGINE_PACKAGE)/libchdb.so
ENGINE_STAMP := $(ENGINE_DIR)/$(ENGINE_PLATFORM)-$(ENGINE_VERSION)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## fetch the ClickHouse engine, build, and run everything on this machine
	@bin/sluice up $(ARGS)

build: need engine bin/api bin/ingester bin/sluice ## build the three programs into bin/
	@ln -sfn ../$(ENGINE) bin/libchdb.so

# The output of --version: "unknown" without a git repository.
STAMP = -X sluice/cmd/internal/run.version=$(shell git describe --tags --always --dirty --match 'v*' 2>/dev/null) -X sluice/cmd/internal/run.commit=$(shell git rev-parse HEAD 2>/dev/null)

bin/%: $(GOFILES) | need
	@mkdir -p bin
	$(GO) build -trimpath -ldflags "$(STAMP)" -o $@ ./cmd/$*

engine: $(ENGINE_STAMP) ## fetch the ClickHouse engine into .cache/

# npm ci installs only the locked package, and verifies its SHA-512.
$(ENGINE_STAMP): $(wildcard $(ENGINE_LOCK)/package-lock.json) | need
	@if [ -z "$(ENGINE_PLATFORM)" ]; then echo "make: no ClickHouse engine for $$(uname -s)/$$(uname -m): use Linux or macOS on x64 or arm64, or docker compose up" >&2; exit 1; fi
	@test -f $(ENGINE_LOCK)/package-lock.json || { echo "make: $(ENGINE_LOCK)/package-lock.json is missing, so $(ENGINE_PACKAGE) cannot be verified: run make engine-lock on a trusted network" >&2; exit 1; }
	@mkdir -p $(ENGINE_DIR) || { echo "make: cannot write to $(ENGINE_DIR): make the folder writable" >&2; exit 1; }
	@cp $(ENGINE_LOCK)/package.json $(ENGINE_LOCK)/package-lock.json $(ENGINE_DIR)/
	npm ci --prefix $(ENGINE_DIR) --no-audit --no-fund --ignore-scripts --loglevel=error
	@test -f $(ENGINE) || { echo "make: npm did not install $(ENGINE): remove $(ENGINE_DIR) and retry" >&2; exit 1; }
	@rm -f $(ENGINE_DIR)/$(ENGINE_PLATFORM)-*; touch $@

engine-lock: ## lock this platform's engine to the SHA-512 in the npm registry
	@mkdir -p $(ENGINE_LOCK)
	@printf '{\n  "private": true,\n  "dependencies": {\n    "%s": "%s"\n  }\n}\n' $(ENGINE_PACKAGE) $(ENGINE_VERSION) >$(ENGINE_LOCK)/package.json
	@rm -f $(ENGINE_LOCK)/package-lock.json
	npm install --prefix $(ENGINE_LOCK) --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --ignore-scripts --loglevel=error

# Two jobs, unless a parent make sets their number.
PAIR = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 2)

test: engine | need ## run all tests, with real NATS and the real engine
	@$(MAKE) $(PAIR) suite beside

# suite tests two packages at a time, beside one: with more, servers answer tests too late.
beside: fuzz
	@$(MAKE) suite-bench
	$(TEST) -timeout 30m -p 1 -parallel 6 $(WAITING:%=./%)

# Tests that mostly wait for restarting servers, and use little CPU.
WAITING := pkg/dial pkg/embedded/clickhouse/server pkg/embedded/clickhouse/supervise pkg/embedded/nats pkg/lease pkg/state pkg/stream

# A high GOGC saves tools and tests a quarter of their CPU time. Programs that tests start
# run without it (programtest.Environ).
SELDOM := GOGC=400

# Tests often wait, so they run concurrently, the longest packages first. make check runs
# vet; -w omits debug information.
TEST := $(SELDOM) $(GO) test -vet=off -ldflags=-w
suite: engine | need
	rest=$$($(GO) list ./... | grep -vxF -e sluice/$(BENCH) $(WAITING:%=-e sluice/%)); \
	$(TEST) -timeout 30m -p 2 -parallel 6 ./cmd/internal/endtoend ./pkg/warehouse $$rest

# Without restarting servers and thousands of random cases, which make test runs.
SHORT := ./pkg ./pkg/api/... ./pkg/auth ./pkg/capacity ./pkg/change ./pkg/console ./pkg/dial ./pkg/ingest/... ./pkg/lease \
	./pkg/load/... ./pkg/ops ./pkg/programtest ./pkg/record ./pkg/state ./cmd/internal/backup ./cmd/internal/run
BY_CHANCE := TestRequestsAgainstASlowOracle|TestManyStepsMayFail|TestEveryStepMayFailInEveryWay
WITH_CLICKHOUSE := TestAnIngesterThatHasLostClickHouseGivesUpItsLanes|TestALateInsertCountsOnce|TestShardsGoAwayAndNothingIsLostOrDoubled
LARGE := TestLimitsLetThroughWhatTheyAllowAndNoMore
test-short: engine | need ## run the fast tests of most packages, about a minute
	$(TEST) -timeout 5m -p 3 -skip '^(TestNoClientStarvesOthers|$(BY_CHANCE)|$(WITH_CLICKHOUSE)|$(LARGE))$$' $(SHORT)

# A short make bench.
suite-bench: engine | need
	$(TEST) -timeout 30m ./$(BENCH)

FUZZ_RUNS ?= 1000x
fuzz: | need ## run every fuzz target of client input briefly; FUZZ_RUNS=100000x runs longer
	@mkdir -p .cache/fuzz; for package in record flow change auth api; do \
		targets=$$(grep -ho '^func Fuzz[A-Za-z]*' pkg/$$package/*_test.go | cut -c6-) || { echo "make fuzz: pkg/$$package has no fuzz target" >&2; exit 1; }; \
		$(TEST) -c -fuzz . -o .cache/fuzz/$$package ./pkg/$$package; \
		for target in $$targets; do \
			(cd pkg/$$package && ../../.cache/fuzz/$$package -test.run '^$$' -test.fuzz "^$$target$$" -test.fuzztime $(FUZZ_RUNS) \
				-test.fuzzminimizetime 100x -test.fuzzcachedir $(CURDIR)/.cache/fuzz/found/$$package); \
		done; \
	done

check: engine | need ## check formatting, vet, staticcheck, modules, Kubernetes, docker-compose.yml, spelling, vulnerabilities, races
	@$(MAKE) $(PAIR) analysis race

# race partly waits, so it runs beside the analyses.
analysis: engine | need
	@unformatted=$$(gofmt -l cmd pkg deploy); [ -z "$$unformatted" ] || { echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; }
	$(SELDOM) $(GO) vet ./...
	$(SELDOM) $(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	$(GO) mod verify
	@$(TEST) -count=1 -run '^TestEvery' ./cmd/internal/simulate/faults >/dev/null || { echo "make check: a patch of cmd/internal/simulate/faults no longer applies, or docs/reliability.md names a missing test: see go test ./cmd/internal/simulate/faults" >&2; exit 1; }
	cd cmd/internal/foreign/kubernetes && $(GO) vet . && $(GO) mod tidy -diff && $(GO) test -count=1 .
	cd $(BROWSER) && $(GO) vet . && $(GO) mod tidy -diff
	@$(MAKE) compose-check spelling vuln

# cspell comes from npm, locked like the engine.
SPELLED := '*.md' 'docs/**/*.md' 'deploy/**/*.md' 'cmd/**/*.md' 'pkg/console/pages/*.html' pkg/api/openapi.yaml deploy/prometheus/alerts.yml docker-compose.yml
spelling: | need ## check the spelling of pages, console, and alerts; terms are in docs/spelling/words.txt
	@mkdir -p .cache/spelling; cmp -s docs/spelling/package-lock.json .cache/spelling/installed.json || { cp docs/spelling/package*.json .cache/spelling/ && \
		npm ci --prefix .cache/spelling --no-audit --no-fund --ignore-scripts --loglevel=error && cp docs/spelling/package-lock.json .cache/spelling/installed.json; }
	@.cache/spelling/node_modules/.bin/cspell --config docs/spelling/cspell.json --no-progress --no-summary $(SPELLED)

compose-check:
	@if docker compose version >/dev/null 2>&1; then docker compose config -q; \
	elif command -v docker-compose >/dev/null; then docker-compose config -q; \
	else echo "make check: docker-compose is missing, which validates docker-compose.yml: apt-get install docker-compose" >&2; exit 1; fi

# The database is vuln.go.dev, or the copy at the URL GOVULNDB; if it is unreachable, its source
# from the Go module proxy. Offline, or if only the installed Go is vulnerable, make vuln prints
# that and succeeds.
VULNDB := golang.org/x/vulndb
vuln: | need ## find known vulnerabilities in functions that we call
	@look() { said=$$($(SELDOM) $(GO) run $(GOVULNCHECK) "$$@" ./... 2>&1) && { echo "$$said" | tail -n 1; exit 0; }; \
		case "$$said" in *"vulnerabilities from the Go standard library."*|*"vulnerability from the Go standard library."*) echo "make vuln: $$($(GO) env GOVERSION) itself has known vulnerabilities: build with $$(echo "$$said" | grep -o '@go[0-9.]*' | tr -d @ | sort -V | tail -n 1) or later"; exit 0;; \
		*"exit status 3"*) echo "$$said" >&2; exit 1;; esac; }; \
	look $(if $(GOVULNDB),-db $(GOVULNDB)); \
	case "$$said" in *"fetching vulnerabilities"*|*"server response"*|*"dial tcp"*) ;; *) echo "$$said" >&2; exit 1;; esac; \
	if copy=$$($(GO) mod download -json $(VULNDB)@latest 2>/dev/null); then \
		version=$$(echo "$$copy" | sed -n 's/^\t"Version": "\(.*\)",$$/\1/p'); source=$$(echo "$$copy" | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
		[ -d .cache/vulndb/$$version ] || { rm -rf .cache/vulndb; $(GO) run $(VULNDB)/cmd/indexdb@$$version -vulns $$source/data/osv -out .cache/vulndb/making && mv .cache/vulndb/making .cache/vulndb/$$version; } || exit 1; \
		look -db file://$(CURDIR)/.cache/vulndb/$$version; echo "$$said" >&2; exit 1; \
	fi; printf 'make vuln: NOT CHECKED for known vulnerabilities: the database or govulncheck is unreachable:\n%s\n' "$$(echo "$$said" | tail -n 2)" >&2

# The console's third-party files, unchanged from npm packages. SHA256SUMS ties the committed
# files to the lock; only this target needs npm.
VENDOR := pkg/console/assets/vendor
console-assets: ## refetch the console's third-party files by their lock
	@rm -rf .cache/console && mkdir -p .cache/console && cp $(VENDOR)/package.json $(VENDOR)/package-lock.json .cache/console/
	npm ci --prefix .cache/console --no-audit --no-fund --ignore-scripts --loglevel=error
	@cp .cache/console/node_modules/uplot/dist/uPlot.iife.min.js .cache/console/node_modules/uplot/dist/uPlot.min.css \
		.cache/console/node_modules/bpmn-js/dist/bpmn-navigated-viewer.production.min.js \
		.cache/console/node_modules/bpmn-js/dist/assets/diagram-js.css $(VENDOR)/
	@cp .cache/console/node_modules/uplot/LICENSE $(VENDOR)/LICENSE.uPlot; cp .cache/console/node_modules/bpmn-js/LICENSE $(VENDOR)/LICENSE.bpmn-js
	@cd $(VENDOR) && { command -v sha256sum >/dev/null && sha256sum package-lock.json *.js *.css || shasum -a 256 package-lock.json *.js *.css; } >SHA256SUMS

# Tests in which goroutines share memory, without long computations. TestNoClientStarvesOthers
# measures other processes, where the detector finds nothing.
RACED := ./pkg/api ./pkg/auth ./pkg/ops ./pkg/lease
MEET := TestEveryStepMayFailInEveryWay/the_last_piece_first|EveryStepOf|Changes|AnOutage|PausedOwner|Halts|Heartbeat|Trickle|Flood|AfterSilence|StopFinishes|LanesShare|AmidPieces|LandsLateCounts|ClaimsNothing|AnOrderComes|AnOldClaim
race: | need ## find data races in packages whose goroutines share memory; needs a C compiler
	@if command -v "$$($(GO) env CC)" >/dev/null; then CGO_ENABLED=1 $(TEST) -race -timeout 10m -skip '^(TestNoClientStarvesOthers|$(LARGE))$$' $(RACED) && \
		CGO_ENABLED=1 $(TEST) -race -timeout 10m -run '$(MEET)' -skip '^($(WITH_CLICKHOUSE))$$' ./pkg/ingest; \
	else echo "make race: NOT CHECKED for data races: the C compiler is missing: apt-get install gcc" >&2; fi

# The programs as tests build them (pkg/programtest), from go test's cache. Those in bin/
# compile every package three times, once per profile.
PLAIN := .cache/programs/plain
plain: engine | need
	@mkdir -p $(PLAIN); $(GO) build -buildvcs=false -pgo=off -ldflags='-w -X sluice/cmd/internal/run.version=v9.9.9 -X sluice/cmd/internal/run.commit=c0ffee' -o $(PLAIN)/ ./cmd/api ./cmd/ingester ./cmd/sluice
	@ln -sfn ../../../$(ENGINE) $(PLAIN)/libchdb.so

foreign: plain ## test third-party clients, Camunda brokers, and Prometheus with sluice up, as far as Python, Node, Java, and apt are installed; and the console in a browser
	@$(MAKE) -j 2 browser clients ARGS="$(ARGS)"

# Both mostly wait, so they run concurrently; browser takes longest and starts first.
clients: plain
	@sh cmd/internal/foreign/install.sh .cache/foreign
	@nice -n 10 $(GO) run ./cmd/internal/foreign $(ARGS)

alarms: plain ## check that each fault raises its alert, with Prometheus and Alertmanager, as root: an hour and a half, a sixth of it with PACE=6
	@sh cmd/internal/foreign/install.sh .cache/foreign
	@$(GO) run ./cmd/internal/foreign --alarms $(or $(PACE),1)

# Chromium is Debian's; root installs it.
BROWSER := cmd/internal/browser
browser-tools: plain
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		{ echo "make browser: Chromium is missing: apt-get install chromium" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make browser: npm is missing, which fetches axe-core: install Node.js (https://nodejs.org)" >&2; exit 1; }
	@mkdir -p .cache/browser; cmp -s $(BROWSER)/axe/package-lock.json .cache/browser/installed.json || { cp $(BROWSER)/axe/*.json .cache/browser/ && \
		npm ci --prefix .cache/browser --no-audit --no-fund --ignore-scripts --loglevel=error && cp $(BROWSER)/axe/package-lock.json .cache/browser/installed.json; }

browser: browser-tools ## test the console in Chromium: user actions, script errors, accessibility
	cd $(BROWSER) && $(GO) test -count=1 -timeout 10m .

screenshots: browser-tools ## run make browser, and write the screenshots of docs/console/
	@mkdir -p docs/console
	cd $(BROWSER) && SCREENSHOTS=$(CURDIR)/docs/console $(GO) test -count=1 -timeout 10m .

chaos: engine | need ## inject faults under load, then find lost and duplicated records
	$(GO) run ./cmd/internal/chaos $(ARGS)

# The real programs in virtual time, over simulated servers. CANARY=1 loses a row
# and must fail; TRACES names a folder for the traces of failures.
SEEDS ?= 5000
FIRST ?= 1
simulate: | need ## run two apis and two ingesters in virtual time: SEEDS histories from seed FIRST; SEED prints one
	@$(if $(SEED),SEED=$(SEED) ,SEEDS=$(SEEDS) FIRST=$(FIRST) )CANARY=$(CANARY) TRACES=$(TRACES) $(TEST) -count=1 -v -timeout 0 -run '^$(if $(SEED),TestOneSeed,TestHistories)$$' ./cmd/internal/simulate

simulate-faults: | need ## apply each deliberate fault to a copy of the tree, and find it by simulation
	@$(GO) run ./cmd/internal/simulate/faults $(ARGS)

upgrade: engine | need ## roll apis and ingesters from a version (PREVIOUS=COMMIT, else this one) to this one and back, under load
	@[ -z "$(PREVIOUS)" ] || { rm -rf .cache/previous && mkdir -p .cache/previous/source && git archive $(PREVIOUS) | tar -x -C .cache/previous/source && \
		cd .cache/previous/source && $(GO) build -trimpath -o ../ ./cmd/api ./cmd/ingester ./cmd/sluice && ln -s ../../$(ENGINE) ../libchdb.so; }
	$(GO) run ./cmd/internal/chaos upgrade $(if $(PREVIOUS),--previous .cache/previous) $(ARGS)

# Reproducible: files have the commit's time, and the same commit and Go give the same bytes.
# Archives contain the engine's lock, not the engine.
RELEASED := linux/amd64/linux-x64-gnu linux/arm64/linux-arm64-gnu darwin/arm64/darwin-arm64 darwin/amd64/darwin-x64
release: | need ## write archives, .deb, .rpm, module lists, and checksums of a tagged commit to dist/ (docs/releases.md); DRAFT=1 takes any commit
	@version=$$(git describe --tags --always --dirty --match 'v*'); \
	[ -n "$(DRAFT)" ] || [[ "$$version" =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$$ && "$$version" != *-dirty ]] || { echo "make release: $$version is not a release: tag the commit, or set DRAFT=1" >&2; exit 1; }; \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); \
	rm -rf dist; for platform in $(RELEASED); do IFS=/ read -r os arch engine <<<"$$platform"; \
		name=sluice-$$version-$$os-$$arch; mkdir -p dist/$$name; \
		GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags "-s -w $(STAMP)" -o dist/$$name/ ./cmd/api ./cmd/ingester ./cmd/sluice; \
		for program in api ingester sluice; do $(GO) version -m dist/$$name/$$program >dist/$$name-$$program.modules.txt; done; \
		deploy/package/stage.sh dist/$$name $$os $$arch $$engine $$version dist; \
		tar -C dist --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w,a+X -cf - $$name | gzip -9n >dist/$$name.tar.gz; \
		rm -r dist/$$name; \
	done; cd dist; sha256sum -- * >../SHA256SUMS; mv ../SHA256SUMS .; echo "$$version is in dist/: $$(ls | wc -l) files"

soak: engine | need ## load for 30 minutes: memory, files, and delays must not grow, and every record is stored once
	$(GO) run ./cmd/internal/chaos soak $(ARGS)

BENCH := cmd/internal/bench
bench: engine | need ## measure the performance goals and scaling, and write docs/performance.md; ARGS names other parts (docs/benchmarks.md)
	$(GO) build -o .cache/bench ./$(BENCH)
	.cache/bench $(ARGS)

# For make bench ARGS=rivals.
rivals: | need ## fetch Rotel from PyPI and build the OpenTelemetry collector, into .cache/rivals
	@mkdir -p .cache/rivals
	python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_34_x86_64 --dest .cache/rivals rotel==0.0.1a15
	@unzip -p .cache/rivals/rotel-*.whl rotel/rotel-agent >.cache/rivals/rotel && chmod +x .cache/rivals/rotel
	$(GO) run go.opentelemetry.io/collector/cmd/builder@v0.165.0 --config $(BENCH)/collector.yaml
	@cp .cache/rivals/source/collector .cache/rivals/collector

hostile: | need ## measure a client's posts during each attack by 64 others, on an idle machine: p99 within 25 ms
	API_TEST_QUIET=1 $(GO) test -count=1 -v -run '^TestNoClientStarvesOthers$$' ./pkg/api

clean: ## remove bin/ and dist/; data/ and .cache/ stay
	rm -rf bin dist

# Names all missing tools in one error. npm fetches the engine, once.
need:
	@missing=; command -v $(GO) >/dev/null || missing=" Go 1.26 or later (https://go.dev/dl)"; \
	test -f $(ENGINE_STAMP) || command -v npm >/dev/null || missing="$$missing$${missing:+,} Node.js with npm (https://nodejs.org)"; \
	[ -z "$$missing" ] || { echo "make: install what is missing, then run make again:$$missing" >&2; exit 1; }

.PHONY: help run build engine engine-lock test test-short beside fuzz check analysis compose-check spelling suite suite-bench vuln race foreign clients alarms plain browser browser-tools screenshots console-assets chaos soak simulate simulate-faults upgrade bench rivals hostile clean need
