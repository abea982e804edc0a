# Sluice: `make run` starts everything, `make test` proves it.
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

run: build ## fetch what is missing, build, and run everything on this machine
	@bin/sluice up $(ARGS)

build: need engine bin/api bin/ingester bin/sluice ## build the three programs into bin/
	@ln -sfn ../$(ENGINE) bin/libchdb.so

# What --version says; without a repository the programs say that it is unknown.
STAMP = -X sluice/cmd/internal/run.version=$(shell git describe --tags --always --dirty --match 'v*' 2>/dev/null) -X sluice/cmd/internal/run.commit=$(shell git rev-parse HEAD 2>/dev/null)

bin/%: $(GOFILES) | need
	@mkdir -p bin
	$(GO) build -trimpath -ldflags "$(STAMP)" -o $@ ./cmd/$*

engine: $(ENGINE_STAMP) ## fetch the ClickHouse engine into .cache/

# npm ci installs what the lock names, by its SHA-512, and nothing else.
$(ENGINE_STAMP): $(wildcard $(ENGINE_LOCK)/package-lock.json) | need
	@if [ -z "$(ENGINE_PLATFORM)" ]; then echo "make: no ClickHouse engine for $$(uname -s)/$$(uname -m): use Linux or macOS on x64 or arm64, or docker compose up" >&2; exit 1; fi
	@test -f $(ENGINE_LOCK)/package-lock.json || { echo "make: the SHA-512 of $(ENGINE_PACKAGE) is not known to this project: on a network you trust, make engine-lock writes down the one of the npm registry" >&2; exit 1; }
	@mkdir -p $(ENGINE_DIR) || { echo "make: cannot write to $(ENGINE_DIR): make the folder writable" >&2; exit 1; }
	@cp $(ENGINE_LOCK)/package.json $(ENGINE_LOCK)/package-lock.json $(ENGINE_DIR)/
	npm ci --prefix $(ENGINE_DIR) --no-audit --no-fund --ignore-scripts --loglevel=error
	@test -f $(ENGINE) || { echo "make: npm installed no $(ENGINE)" >&2; exit 1; }
	@rm -f $(ENGINE_DIR)/$(ENGINE_PLATFORM)-*; touch $@

engine-lock: ## write down the SHA-512 of this platform's engine, as the npm registry says it
	@mkdir -p $(ENGINE_LOCK)
	@printf '{\n  "private": true,\n  "dependencies": {\n    "%s": "%s"\n  }\n}\n' $(ENGINE_PACKAGE) $(ENGINE_VERSION) >$(ENGINE_LOCK)/package.json
	@rm -f $(ENGINE_LOCK)/package-lock.json
	npm install --prefix $(ENGINE_LOCK) --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --ignore-scripts --loglevel=error

# Two parts at a time, unless make has its number of jobs from its caller.
PAIR = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 2)

test: engine | need ## the whole suite, with real NATS and the real engine
	@$(MAKE) $(PAIR) suite beside

# Two packages and one of these at a time: more of them only wait for the same cores,
# and tests that wait for servers find them late.
beside: fuzz
	@$(MAKE) suite-bench
	$(TEST) -timeout 30m -p 1 -parallel 6 $(WAITING:%=./%)

# Servers that stop and come back: what waits for them takes little of the processors.
WAITING := pkg/dial pkg/embedded/clickhouse/server pkg/embedded/clickhouse/supervise pkg/embedded/nats pkg/lease pkg/state pkg/stream

# Tools and tests collect garbage seldom, which takes a quarter less of the processors; programs
# that tests start do so as released (programtest.Environ).
SELDOM := GOGC=400

# Much of it waits too, so packages and tests run side by side, the longest first.
# make check has vetted it; what is linked here is never debugged.
TEST := $(SELDOM) $(GO) test -vet=off -ldflags=-w
suite: engine | need
	rest=$$($(GO) list ./... | grep -vxF -e sluice/$(BENCH) $(WAITING:%=-e sluice/%)); \
	$(TEST) -timeout 30m -p 2 -parallel 6 ./cmd/internal/endtoend ./pkg/warehouse $$rest

# The inner loop: rooms by themselves, and of them not what takes long: servers that die
# and come back, and thousands of cases by chance. make test runs all of it.
SHORT := ./pkg ./pkg/api/... ./pkg/auth ./pkg/capacity ./pkg/change ./pkg/console ./pkg/dial ./pkg/ingest/... ./pkg/lease \
	./pkg/load/... ./pkg/ops ./pkg/programtest ./pkg/record ./pkg/state ./cmd/internal/backup ./cmd/internal/run
BY_CHANCE := TestRequestsAgainstASlowOracle|TestManyStepsMayFail|TestEveryStepMayFailInEveryWay
WITH_CLICKHOUSE := TestAnIngesterThatHasLostClickHouseGivesUpItsLanes|TestALateInsertCountsOnce|TestShardsGoAwayAndNothingIsLostOrDoubled
LARGE := TestLimitsLetThroughWhatTheyAllowAndNoMore
test-short: engine | need ## the inner loop, about a minute: rooms by themselves, without what takes long
	$(TEST) -timeout 5m -p 3 -skip '^(TestNoClientStarvesOthers|$(BY_CHANCE)|$(WITH_CLICKHOUSE)|$(LARGE))$$' $(SHORT)

# make bench in small: it measures, so it has the processors to itself.
suite-bench: engine | need
	$(TEST) -timeout 30m ./$(BENCH)

FUZZ_RUNS ?= 1000x
fuzz: | need ## a short run of every fuzz target of what clients send
	@mkdir -p .cache/fuzz; for package in record flow change auth api; do \
		targets=$$(grep -ho '^func Fuzz[A-Za-z]*' pkg/$$package/*_test.go | cut -c6-) || { echo "make fuzz: pkg/$$package has no fuzz target" >&2; exit 1; }; \
		$(TEST) -c -fuzz . -o .cache/fuzz/$$package ./pkg/$$package; \
		for target in $$targets; do \
			(cd pkg/$$package && ../../.cache/fuzz/$$package -test.run '^$$' -test.fuzz "^$$target$$" -test.fuzztime $(FUZZ_RUNS) \
				-test.fuzzminimizetime 100x -test.fuzzcachedir $(CURDIR)/.cache/fuzz/found/$$package); \
		done; \
	done

check: engine | need ## formatting, vet, staticcheck, modules, Kubernetes, docker-compose.yml, spelling, vulnerabilities, races
	@$(MAKE) $(PAIR) analysis race

# The analyses compute, and race waits too, so they run side by side.
analysis: engine | need
	@unformatted=$$(gofmt -l cmd pkg deploy); [ -z "$$unformatted" ] || { echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; }
	$(SELDOM) $(GO) vet ./...
	$(SELDOM) $(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	$(GO) mod verify
	@$(TEST) -count=1 -run '^TestEvery' ./cmd/internal/simulate/faults >/dev/null || { echo "make check: a patch of cmd/internal/simulate/faults does not apply any more, or docs/reliability.md names no test: go test ./cmd/internal/simulate/faults" >&2; exit 1; }
	cd cmd/internal/foreign/kubernetes && $(GO) vet . && $(GO) mod tidy -diff && $(GO) test -count=1 .
	cd $(BROWSER) && $(GO) vet . && $(GO) mod tidy -diff
	@$(MAKE) compose-check spelling vuln

# cspell is npm's, by a lock as the engine's.
SPELLED := '*.md' 'docs/**/*.md' 'deploy/**/*.md' 'cmd/**/*.md' 'pkg/console/pages/*.html' pkg/api/openapi.yaml deploy/prometheus/alerts.yml docker-compose.yml
spelling: | need ## every word of pages, console, and alerts is English or in docs/spelling/words.txt
	@mkdir -p .cache/spelling; cmp -s docs/spelling/package-lock.json .cache/spelling/installed.json || { cp docs/spelling/package*.json .cache/spelling/ && \
		npm ci --prefix .cache/spelling --no-audit --no-fund --ignore-scripts --loglevel=error && cp docs/spelling/package-lock.json .cache/spelling/installed.json; }
	@.cache/spelling/node_modules/.bin/cspell --config docs/spelling/cspell.json --no-progress --no-summary $(SPELLED)

compose-check:
	@if docker compose version >/dev/null 2>&1; then docker compose config -q; \
	elif command -v docker-compose >/dev/null; then docker-compose config -q; \
	else echo "make check: docker-compose is missing, it validates docker-compose.yml: apt-get install docker-compose" >&2; exit 1; fi

# The database is vuln.go.dev, or GOVULNDB, the URL of a copy. Where that cannot be reached, the
# proxy of Go modules has its source as a module. Offline there is none: that is said, and is no
# failure; neither are those of the Go on this machine, which another patch release does not have.
VULNDB := golang.org/x/vulndb
vuln: | need ## known vulnerabilities in what is called of our dependencies
	@look() { said=$$($(SELDOM) $(GO) run $(GOVULNCHECK) "$$@" ./... 2>&1) && { echo "$$said" | tail -n 1; exit 0; }; \
		case "$$said" in *"vulnerabilities from the Go standard library."*|*"vulnerability from the Go standard library."*) echo "make vuln: $$($(GO) env GOVERSION) itself has known vulnerabilities: build with $$(echo "$$said" | grep -o '@go[0-9.]*' | tr -d @ | sort -V | tail -n 1) or later"; exit 0;; \
		*"exit status 3"*) echo "$$said" >&2; exit 1;; esac; }; \
	look $(if $(GOVULNDB),-db $(GOVULNDB)); \
	case "$$said" in *"fetching vulnerabilities"*|*"server response"*|*"dial tcp"*) ;; *) echo "$$said" >&2; exit 1;; esac; \
	if copy=$$($(GO) mod download -json $(VULNDB)@latest 2>/dev/null); then \
		version=$$(echo "$$copy" | sed -n 's/^\t"Version": "\(.*\)",$$/\1/p'); source=$$(echo "$$copy" | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
		[ -d .cache/vulndb/$$version ] || { rm -rf .cache/vulndb; $(GO) run $(VULNDB)/cmd/indexdb@$$version -vulns $$source/data/osv -out .cache/vulndb/making && mv .cache/vulndb/making .cache/vulndb/$$version; } || exit 1; \
		look -db file://$(CURDIR)/.cache/vulndb/$$version; echo "$$said" >&2; exit 1; \
	fi; printf 'make vuln: NOT LOOKED FOR known vulnerabilities, the database or its tool cannot be reached:\n%s\n' "$$(echo "$$said" | tail -n 2)" >&2

# The console's third-party files, as npm packages ship them. SHA256SUMS ties what
# is committed to the lock; only fetching them anew needs npm.
VENDOR := pkg/console/assets/vendor
console-assets: ## fetch the console's third-party files anew, as their lock says
	@rm -rf .cache/console && mkdir -p .cache/console && cp $(VENDOR)/package.json $(VENDOR)/package-lock.json .cache/console/
	npm ci --prefix .cache/console --no-audit --no-fund --ignore-scripts --loglevel=error
	@cp .cache/console/node_modules/uplot/dist/uPlot.iife.min.js .cache/console/node_modules/uplot/dist/uPlot.min.css \
		.cache/console/node_modules/bpmn-js/dist/bpmn-navigated-viewer.production.min.js \
		.cache/console/node_modules/bpmn-js/dist/assets/diagram-js.css $(VENDOR)/
	@cp .cache/console/node_modules/uplot/LICENSE $(VENDOR)/LICENSE.uPlot; cp .cache/console/node_modules/bpmn-js/LICENSE $(VENDOR)/LICENSE.bpmn-js
	@cd $(VENDOR) && { command -v sha256sum >/dev/null && sha256sum package-lock.json *.js *.css || shasum -a 256 package-lock.json *.js *.css; } >SHA256SUMS

# Where goroutines of ours meet, and not what one of them reckons for long. TestNoClientStarvesOthers
# measures other processes, whose races it would not see. The race detector needs a C compiler.
RACED := ./pkg/api ./pkg/auth ./pkg/ops ./pkg/lease
MEET := TestEveryStepMayFailInEveryWay/the_last_piece_first|EveryStepOf|Changes|AnOutage|PausedOwner|Halts|Heartbeat|Trickle|Flood|AfterSilence|StopFinishes|LanesShare|AmidPieces|LandsLateCounts|ClaimsNothing|AnOrderComes|AnOldClaim
race: | need ## data races in the packages whose goroutines share memory, where there is a C compiler
	@if command -v "$$($(GO) env CC)" >/dev/null; then CGO_ENABLED=1 $(TEST) -race -timeout 10m -skip '^(TestNoClientStarvesOthers|$(LARGE))$$' $(RACED) && \
		CGO_ENABLED=1 $(TEST) -race -timeout 10m -run '$(MEET)' -skip '^($(WITH_CLICKHOUSE))$$' ./pkg/ingest; \
	else echo "make race: NOT LOOKED FOR data races, there is no C compiler: apt-get install gcc" >&2; fi

# The programs as tests run them, which go test has compiled (pkg/programtest): those of
# bin/ are compiled three times over, by their profiles.
PLAIN := .cache/programs/plain
plain: engine | need
	@mkdir -p $(PLAIN); $(GO) build -buildvcs=false -pgo=off -ldflags='-w -X sluice/cmd/internal/run.version=v9.9.9 -X sluice/cmd/internal/run.commit=c0ffee' -o $(PLAIN)/ ./cmd/api ./cmd/ingester ./cmd/sluice
	@ln -sfn ../../../$(ENGINE) $(PLAIN)/libchdb.so

foreign: plain ## what others make against sluice up, where Python, Node, Java and apt are there: clients, brokers of Camunda, Prometheus; and the console in a browser
	@$(MAKE) -j 2 browser clients ARGS="$(ARGS)"

# Most of both is waiting, so they run side by side; the browser, which takes longest, goes first.
clients: plain
	@sh cmd/internal/foreign/install.sh .cache/foreign
	@nice -n 10 $(GO) run ./cmd/internal/foreign $(ARGS)

alarms: plain ## an hour and a half of faults as root, with Prometheus and Alertmanager: which alert each raises, and that every rule fires; PACE=6 in a sixth of the time
	@sh cmd/internal/foreign/install.sh .cache/foreign
	@$(GO) run ./cmd/internal/foreign --alarms $(or $(PACE),1)

# Chromium is Debian's; as root it is installed, as make test's CI does docker-compose.
BROWSER := cmd/internal/browser
browser-tools: plain
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		{ echo "make browser: Chromium is missing: apt-get install chromium" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make browser: npm is missing, it fetches axe-core: install Node.js (https://nodejs.org)" >&2; exit 1; }
	@mkdir -p .cache/browser; cmp -s $(BROWSER)/axe/package-lock.json .cache/browser/installed.json || { cp $(BROWSER)/axe/*.json .cache/browser/ && \
		npm ci --prefix .cache/browser --no-audit --no-fund --ignore-scripts --loglevel=error && cp $(BROWSER)/axe/package-lock.json .cache/browser/installed.json; }

browser: browser-tools ## the console in a real browser: what people do there, script errors, accessibility
	cd $(BROWSER) && $(GO) test -count=1 -timeout 5m .

screenshots: browser-tools ## the same, and write the pictures of docs/console/
	@mkdir -p docs/console
	cd $(BROWSER) && SCREENSHOTS=$(CURDIR)/docs/console $(GO) test -count=1 -timeout 5m .

chaos: engine | need ## break everything under load, then look for lost and doubled records
	$(GO) run ./cmd/internal/chaos $(ARGS)

# The real programs in virtual time, over simulated servers. CANARY=1 loses a row on purpose
# and must fail; TRACES names a folder for what led to failures.
SEEDS ?= 5000
FIRST ?= 1
simulate: | need ## two apis and two ingesters in virtual time: SEEDS histories from seed FIRST on; SEED shows one
	@$(if $(SEED),SEED=$(SEED) ,SEEDS=$(SEEDS) FIRST=$(FIRST) )CANARY=$(CANARY) TRACES=$(TRACES) $(TEST) -count=1 -v -timeout 0 -run '^$(if $(SEED),TestOneSeed,TestHistories)$$' ./cmd/internal/simulate

simulate-faults: | need ## put each deliberate fault into a copy of the tree, and look for it by simulation
	@$(GO) run ./cmd/internal/simulate/faults $(ARGS)

# The programs of a commit, to roll from and back to.
upgrade: engine | need ## roll apis and ingesters from a version (PREVIOUS=COMMIT, else this one) to this one and back, under load
	@[ -z "$(PREVIOUS)" ] || { rm -rf .cache/previous && mkdir -p .cache/previous/source && git archive $(PREVIOUS) | tar -x -C .cache/previous/source && \
		cd .cache/previous/source && $(GO) build -trimpath -o ../ ./cmd/api ./cmd/ingester ./cmd/sluice && ln -s ../../$(ENGINE) ../libchdb.so; }
	$(GO) run ./cmd/internal/chaos upgrade $(if $(PREVIOUS),--previous .cache/previous) $(ARGS)

# The same commit and the same Go give the same bytes: times are those of the commit. The
# engine is not ours to ship; its lock says which one npm is to fetch.
RELEASED := linux/amd64/linux-x64-gnu linux/arm64/linux-arm64-gnu darwin/arm64/darwin-arm64 darwin/amd64/darwin-x64
release: | need ## archives, .deb, .rpm, lists of modules and checksums of a tagged commit, into dist/ (docs/releases.md); DRAFT=1 takes any commit
	@version=$$(git describe --tags --always --dirty --match 'v*'); \
	[ -n "$(DRAFT)" ] || [[ "$$version" =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$$ && "$$version" != *-dirty ]] || { echo "make release: $$version is no release: tag the commit, or give DRAFT=1" >&2; exit 1; }; \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); \
	rm -rf dist; for platform in $(RELEASED); do IFS=/ read -r os arch engine <<<"$$platform"; \
		name=sluice-$$version-$$os-$$arch; mkdir -p dist/$$name; \
		GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags "-s -w $(STAMP)" -o dist/$$name/ ./cmd/api ./cmd/ingester ./cmd/sluice; \
		for program in api ingester sluice; do $(GO) version -m dist/$$name/$$program >dist/$$name-$$program.modules.txt; done; \
		deploy/package/stage.sh dist/$$name $$os $$arch $$engine $$version dist; \
		tar -C dist --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w,a+X -cf - $$name | gzip -9n >dist/$$name.tar.gz; \
		rm -r dist/$$name; \
	done; cd dist; sha256sum -- * >../SHA256SUMS; mv ../SHA256SUMS .; echo "$$version is in dist/: $$(ls | wc -l) files"

soak: engine | need ## a steady load for 30 minutes: nothing may grow, everything is stored once
	$(GO) run ./cmd/internal/chaos soak $(ARGS)

BENCH := cmd/internal/bench
bench: engine | need ## measure every goal of speed and how it scales, and write docs/performance.md; ARGS names other parts (docs/benchmarks.md)
	$(GO) build -o .cache/bench ./$(BENCH)
	.cache/bench $(ARGS)

# Programs that make bench ARGS=rivals measures: Rotel of PyPI, the collector by its own builder.
rivals: | need ## fetch Rotel and build the OpenTelemetry collector into .cache/rivals
	@mkdir -p .cache/rivals
	python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_34_x86_64 --dest .cache/rivals rotel==0.0.1a15
	@unzip -p .cache/rivals/rotel-*.whl rotel/rotel-agent >.cache/rivals/rotel && chmod +x .cache/rivals/rotel
	$(GO) run go.opentelemetry.io/collector/cmd/builder@v0.165.0 --config $(BENCH)/collector.yaml
	@cp .cache/rivals/source/collector .cache/rivals/collector

hostile: | need ## good posts beside every attack of 64 clients: p99 within 25 ms, on a machine that does nothing else
	API_TEST_QUIET=1 $(GO) test -count=1 -v -run '^TestNoClientStarvesOthers$$' ./pkg/api

clean: ## remove what was built; data/ and .cache/ stay
	rm -rf bin dist

# What is missing is named all at once. npm fetches the engine, once.
need:
	@missing=; command -v $(GO) >/dev/null || missing=" Go 1.26 or later (https://go.dev/dl)"; \
	test -f $(ENGINE_STAMP) || command -v npm >/dev/null || missing="$$missing$${missing:+,} Node.js with npm (https://nodejs.org)"; \
	[ -z "$$missing" ] || { echo "make: install what is missing, then run make again:$$missing" >&2; exit 1; }

.PHONY: help run build engine engine-lock test test-short beside fuzz check analysis compose-check spelling suite suite-bench vuln race foreign clients alarms plain browser browser-tools screenshots console-assets chaos soak simulate simulate-faults upgrade bench rivals hostile clean need
