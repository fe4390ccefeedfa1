# Everything a developer runs. `make` alone lists the targets.
# Nothing here names a package host: pip and Maven take theirs from the environment.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv
BIN := $(VENV)/bin
SETUP_STAMP := $(VENV)/.sluice-setup
PACKAGES := protocol transport shuffle spark_integration sluice
INSTALL_LOCKED := $(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation
SUPPLY_VENV := build/supply-chain
SUPPLY_STAMP := $(SUPPLY_VENV)/.complete
JVM := spark_integration/jvm
JAR := spark_integration/jars/sluice-spark.jar
JVM_SOURCES := $(JVM)/pom.xml $(shell find $(JVM)/src $(JVM)/.mvn 2>/dev/null) tests/vectors/wire.json tests/vectors/identity.json
S3_SERVER := build/s3-server/versitygw
ACTIONLINT := build/actionlint/actionlint
CHART_TOOLS := build/charts/helm build/charts/kubeconform
KUBERNETES := build/kubernetes/bin
KUBERNETES_PROGRAMS := $(addprefix $(KUBERNETES)/,kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
COMPILED := build/compiled
COMPILED_STAMP := $(COMPILED)/.complete
WITH_COMPILED := PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR) PYTHONSAFEPATH=1
PYTHON_HEADER = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
CAN_COMPILE = $(and $(shell command -v cc),$(wildcard $(PYTHON_HEADER)))
ATTACK_ROUNDS := 41
FUZZ_SECONDS := 60
FUZZ_SPARK_PLANS := 300
FUZZ_SPARK_SECONDS := 1200
FUZZ_SPARK_SEED := 0
SEEDS := 1000
MUTANT_SEEDS := 40
FIRST := 0
UPGRADE := --upgrade
PYTHONS := python3.12 python3.13 python3.14
RELEASE_PYTHONS := $(PYTHON)
TAG :=
SPARK_LINES :=
SPARK_LINES_DIRECTORY := .spark-lines
SUITES :=
PARTITION_MIB := 2300
CHAOS_SECONDS := 240
CHAOS_SEED := 1
CHAOS_REPLICAS := 1
CHAOS_MODE := sync
SOAK_MINUTES := 30
SOAK_SEED := 1
SOAK_REPLICAS := 2
MODULES := protocol/credit.py shuffle/memory
LIMIT := 0
SEED := 0
MINUTES := 25
QUICK_BENCHMARKS := exchange isolation barrier memory

.PHONY: help setup jar wheels compiled demo quick s3-server test test-all test-compiled test-pythons test-matrix test-table-formats yarn-test attack attack-compiled fuzz fuzz-spark spark-suites large-partition chaos soak simulate simulate-mutants mutate check format bench charts pictures compose-test kubernetes-test docs docs-site constraints maven-checksums sbom audit changelog clean test-matrix-compiled workflows release chart-tools chart-schemas helm-chart

help: ## list these targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(SETUP_STAMP) $(JAR) ## virtual environment, dependencies and jar; instant when up to date

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Sluice needs Python 3.11 or later, $(PYTHON) is older or missing: install it or call" \
	       "make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made in $(VENV): on Debian install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }

# Nothing is installed whose SHA-256 is not in requirements/. The packages that build others come
# first: in an isolated build, pip would fetch them by name, whatever their hash.
$(SETUP_STAMP): pyproject.toml requirements/build.txt requirements/development.txt | $(BIN)/python
	@echo "Installing dependencies into $(VENV) (PySpark is large: a minute or more the first time)"
	$(INSTALL_LOCKED) --requirement requirements/build.txt
	$(INSTALL_LOCKED) --requirement requirements/development.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

jar: $(JAR) ## the Spark plugin, built and unit-tested by Maven when its sources changed

$(JAR): $(JVM_SOURCES)
	@command -v mvn >/dev/null || { \
	  echo "Maven is missing: the Spark plugin needs it. On Debian: apt-get install maven" >&2; exit 1; }
	@[[ "$$(mvn -v 2>&1)" =~ "Java version: "(1[7-9]|[2-9][0-9]) ]] || { \
	  echo "Maven finds no JDK 17 or later: install one (Debian: openjdk-17-jdk-headless) and" \
	       "point JAVA_HOME to it" >&2; exit 1; }
	@echo "Building and testing the Spark plugin"
	@# Renamed into place: a JVM that runs has the old file mapped and must not see it change.
	@mkdir -p $(dir $(JAR))
	mvn -q -B -Dstyle.color=never -Dsluice.jar=$(abspath $(JAR)).new -f $(JVM)/pom.xml package
	@$(PYTHON) -m tools.supply.maven verify
	@mv -f $(JAR).new $@
	@touch $@

# Extension modules are left beside what they were made of.
define COPY_SOURCE
@rm -rf build/source && mkdir -p build/source/sluice
@cp pyproject.toml hatch_build.py mypyc.ini README.md CHANGELOG.md LICENSE NOTICE build/source
@tar -chf - --exclude=sluice/spark_integration/jvm --exclude=__pycache__ sluice | tar -xf - -C build/source
endef

WHEEL := pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist

wheels: setup ## the wheels in dist: compiled for this Python (needs a C compiler), and for any Python
	@rm -f dist/sluice_shuffle-*.whl
	$(BIN)/python -m $(WHEEL) .
	$(if $(CAN_COMPILE),$(COPY_SOURCE))
	$(if $(CAN_COMPILE),HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m $(WHEEL) build/source,@echo \
	  "No C compiler, or no headers of $(PYTHON) (Debian: python3-dev gcc): no compiled wheel")
	@ls dist/sluice_shuffle-*.whl

compiled: $(COMPILED_STAMP) ## the data path as extension modules, in build/compiled: needs a C compiler

$(COMPILED_STAMP): $(shell find protocol transport shuffle spark_integration sluice -name '*.py' -not -path '*/jvm/*') pyproject.toml requirements/build.txt | setup
	@echo "Compiling the data path into $(COMPILED) (about two minutes)"
	@rm -rf $(COMPILED)
	$(COPY_SOURCE)
	HATCH_BUILD_HOOKS_ENABLE=1 \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target $(COMPILED) build/source
	@# The jar of the checkout, whenever it is built.
	@rm -rf $(COMPILED)/sluice/spark_integration/jars
	@ln -s $(abspath $(dir $(JAR))) $(COMPILED)/sluice/spark_integration/jars
	@touch $@

demo: setup ## TPC-H and RDD jobs with Spark's own shuffle and with Sluice, compared
	$(BIN)/python -m benchmarks.demo

# On one kind of event loop, and without what takes seconds.
quick: setup ## the tests without Spark, in less than a minute
	$(BIN)/python -m pytest -n 2 -q --one-loop -m "not spark and not slow" --durations=5 \
	  tests/protocol tests/transport tests/shuffle tests/spark_integration tests/test_layering.py \
	  tests/test_house.py \
	  $(PYTEST_ARGS)

# Go checks every module against go.sum. Tests that need the server are left out without it.
$(S3_SERVER): tools/s3_server/go.mod tools/s3_server/go.sum
	cd tools/s3_server && go build -mod=readonly -o $(CURDIR)/$@ \
	  github.com/versity/versitygw/cmd/versitygw
	@touch $@

s3-server: $(S3_SERVER) ## the S3 server of the tests and of bench-remote, built with Go

# Helm takes the version of Kubernetes that it assumes without a cluster from the linker.
$(CHART_TOOLS) &: tools/charts/go.mod tools/charts/go.sum
	cd tools/charts && CGO_ENABLED=0 go build -mod=readonly -trimpath -o $(CURDIR)/build/charts/ \
	  -ldflags "-s -w -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34" \
	  helm.sh/helm/v3/cmd/helm github.com/yannh/kubeconform/cmd/kubeconform
	@touch $(CHART_TOOLS)

chart-tools: $(CHART_TOOLS) ## Helm and kubeconform, for the tests of the Helm chart, built with Go

helm-chart: setup $(CHART_TOOLS) ## the Helm chart: lint, schemas of Kubernetes, every branch
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/charts $(PYTEST_ARGS)

chart-schemas: setup ## JSON schemas of Kubernetes and of operators into tests/charts/schemas, from Go modules
	$(BIN)/python -m tools.charts.schemas

# Three at a time, two of them Spark tests beside the others: all wait more than they compute.
test: setup $(if $(shell command -v go),$(S3_SERVER) $(CHART_TOOLS)) ## the tests that a change must pass
	$(BIN)/python -m pytest -n 3 --dist loadgroup $(EXTENDED) $(PYTEST_ARGS)

test-all: EXTENDED := --extended
test-all: test ## all tests: also extended ones, asyncio tests on every event loop

test-compiled: compiled ## the tests of the data path, compiled
	$(WITH_COMPILED) EXPECTED_DATA_PATH=compiled $(BIN)/python -m pytest -n 2 --dist loadgroup \
	  -o pythonpath="$(COMPILED) ." tests/protocol tests/transport tests/shuffle tests/fuzz \
	  tests/benchmarks $(PYTEST_ARGS)

# A virtual environment for each, in build/.
test-pythons: jar ## the tests without Spark on other Pythons, or PYTHONS="/path/to/python3.13"
	@for python in $(PYTHONS); do \
	  venv=build/venv-$$($$python -c 'import platform; print(platform.python_version())'); \
	  $(MAKE) --no-print-directory setup PYTHON=$$python VENV=$$venv && \
	  $$venv/bin/python -m pytest -n 2 --dist loadgroup --extended -m "not spark" tests/protocol \
	    tests/transport tests/shuffle tests/spark_integration tests/test_optional_names.py \
	    $(PYTEST_ARGS) || exit 1; \
	done

test-matrix: setup ## the Spark tests on every line of Spark, or SPARK_LINES="3.5.9 4.0.5"
	$(BIN)/python -m tests.spark_lines.run --directory $(SPARK_LINES_DIRECTORY) $(SPARK_LINES) \
	  $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

test-matrix-compiled: compiled ## the same, with the compiled data path
	$(WITH_COMPILED) EXPECTED_DATA_PATH=compiled $(BIN)/python -m tests.spark_lines.run \
	  --directory $(SPARK_LINES_DIRECTORY) $(SPARK_LINES) \
	  -- -o pythonpath="$(COMPILED) ." $(or $(PYTEST_ARGS),tests/spark)

test-table-formats: setup ## the tests with the real Delta Lake and Iceberg, whose jars Maven fetches
	$(BIN)/python -m tests.table_formats.run $(PYTEST_ARGS)

yarn-test: setup ## the tests on a real YARN cluster, whose jars Maven fetches into build/yarn
	$(BIN)/python -m tests.yarn.run $(PYTEST_ARGS)

# With rates of innocent applications, in CPU seconds and counts; ATTACK_ROUNDS=0 leaves them out.
attack: setup ## hostile clients on real TaskManagers, and rates of innocent ones beside them
	SLUICE_ATTACK_ROUNDS=$(ATTACK_ROUNDS) $(BIN)/python -m pytest tests/attack $(PYTEST_ARGS)

attack-compiled: compiled ## the same, on the compiled data path
	$(WITH_COMPILED) EXPECTED_DATA_PATH=compiled SLUICE_ATTACK_ROUNDS=$(ATTACK_ROUNDS) \
	  $(BIN)/python -m pytest -o pythonpath="$(COMPILED) ." tests/attack $(PYTEST_ARGS)

fuzz: setup ## damaged streams for framing and connections, in bounded memory, for FUZZ_SECONDS=60
	SLUICE_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/fuzz -x -q -p no:logging \
	  -o faulthandler_timeout=0

fuzz-spark: setup ## random Spark plans against Spark's own shuffle: FUZZ_SPARK_PLANS=300
	SLUICE_SPARK_PLANS=$(FUZZ_SPARK_PLANS) SLUICE_SPARK_SECONDS=$(FUZZ_SPARK_SECONDS) \
	  SLUICE_SPARK_SEED=$(FUZZ_SPARK_SEED) $(BIN)/python -m pytest tests/spark/test_plans.py -x -s \
	  -o faulthandler_timeout=0

spark-suites: setup ## Spark's own test suites with Sluice and without, or SUITES="JoinSuite SortingSuite"
	$(BIN)/python -m tools.spark_suites.run $(SUITES)

large-partition: setup ## a partition of more than 2 GiB from one map task: PARTITION_MIB=2300; needs twice as much disk
	SLUICE_PARTITION_MIB=$(PARTITION_MIB) $(BIN)/python -m pytest tests/spark/test_matrix.py \
	  -k large_partition $(PYTEST_ARGS)

chaos: setup ## a Spark job while executors and TaskManagers break, for CHAOS_SECONDS=240, CHAOS_SEED=1, CHAOS_REPLICAS=1 (or 2, CHAOS_MODE=sync or async)
	$(BIN)/python -m tests.chaos.run --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED) \
	  --replicas $(CHAOS_REPLICAS) --mode $(CHAOS_MODE)

soak: setup ## Spark jobs while TaskManagers join, leave, restart and move, for SOAK_MINUTES=30, SOAK_SEED=1, SOAK_REPLICAS=2 (or 1); what each process uses must not grow
	$(BIN)/python -m tests.soak.run --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED) \
	  --replicas $(SOAK_REPLICAS)

simulate: setup ## TaskManagers, clients and faults on virtual time: SEEDS=1000 from FIRST=0, or SEED=7 to replay one and print its trace (ONLY=0,2: only these of its faults)
	$(BIN)/python -m tests.simulation.run $(if $(findstring command,$(origin SEED)),--seed $(SEED) \
	  $(if $(ONLY),--only $(ONLY)),--first $(FIRST) --seeds $(SEEDS))

simulate-mutants: setup ## which mistakes does the simulation notice? each for MUTANT_SEEDS=40, none begun after MINUTES=25; AREA=store, replicas, drain, membership or 'remote tier'
	$(BIN)/python -m tests.simulation.mutants --seeds $(MUTANT_SEEDS) --minutes $(MINUTES) \
	  $(if $(AREA),--area "$(AREA)")

mutate: setup ## which tests notice small changes of the code: MODULES=shuffle/memory LIMIT=0 (all of a module) SEED=0 MINUTES=25
	$(BIN)/python -m tools.kill_matrix $(MODULES) --limit $(LIMIT) --seed $(SEED) --minutes $(MINUTES)

check: setup docs-site $(if $(shell command -v go),workflows) ## formatting, lint, types, the documentation's links, with Go also the workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	mvn -q -B -Dstyle.color=never -f $(JVM)/pom.xml spotless:check

$(ACTIONLINT): tools/actionlint/go.mod tools/actionlint/go.sum
	cd tools/actionlint && go build -mod=readonly -o $(CURDIR)/$@ \
	  github.com/rhysd/actionlint/cmd/actionlint
	@touch $@

workflows: $(ACTIONLINT) $(SUPPLY_STAMP) ## lint .github with actionlint, built with Go, and zizmor
	$(ACTIONLINT) -color=false
	$(SUPPLY_VENV)/bin/zizmor --offline --quiet --no-progress .github

format: setup ## format and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	mvn -q -B -Dstyle.color=never -f $(JVM)/pom.xml spotless:apply

bench: $(addprefix bench-,$(QUICK_BENCHMARKS)) ## the quick benchmarks

# Of what the images run, if there is a compiler here; the results say which it was.
bench-%: setup $(if $(CAN_COMPILE),compiled) ## one benchmark: bench-exchange, bench-spark, ...; options in BENCH_ARGS
	$(if $(CAN_COMPILE),$(WITH_COMPILED)) $(BIN)/python -m benchmarks.$(subst -,_,$*) $(BENCH_ARGS)

bench-remote: $(S3_SERVER)

charts: setup ## results of benchmarks into benchmarks/reference, and their charts into docs/images
	$(BIN)/python -m benchmarks.charts

pictures: setup ## the pictures of the status page and of a trace in docs/images: needs Chromium
	$(BIN)/python -m tools.docs.pictures
	$(BIN)/python -m tools.docs.trace_picture

compose-test: setup ## the docker compose stack, run for real
	tests/compose/run.sh

# Static, because nodes and images have no libraries for them. Without a version of its own, a
# kubelet is refused by the API server.
KUBERNETES_VERSION = $(shell sed -n 's,^require k8s.io/kubernetes \(v[0-9.]*\).*,\1,p' tests/kubernetes/binaries/go.mod)
BUILD_STATIC = CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags

$(KUBERNETES_PROGRAMS): $(KUBERNETES)/%: tests/kubernetes/binaries/go.mod tests/kubernetes/binaries/go.sum
	cd tests/kubernetes/binaries && $(BUILD_STATIC) \
	  '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)' \
	  -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/$*
	@touch $@

$(KUBERNETES)/etcd: tests/kubernetes/etcd/go.mod tests/kubernetes/etcd/go.sum
	cd tests/kubernetes/etcd && $(BUILD_STATIC) '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3
	@touch $@

$(KUBERNETES)/coredns $(KUBERNETES)/pause: $(KUBERNETES)/%: tests/kubernetes/%/main.go tests/kubernetes/%/go.mod
	cd tests/kubernetes/$* && $(BUILD_STATIC) '-s -w' -o $(CURDIR)/$@ .
	@touch $@

kubernetes-test: setup $(KUBERNETES_PROGRAMS) $(addprefix $(KUBERNETES)/,etcd coredns pause) $(CHART_TOOLS) ## the chart and Spark in cluster mode on a Kubernetes cluster with two nodes, as root: CASES="scaled StatefulSet:isolated", KEEP=1 keeps the cluster
	$(BIN)/python -m tests.kubernetes.run $(if $(KEEP),--keep) $(CASES)

docs: setup ## regenerate what is generated: JVM messages, wire tables, settings, errors, troubleshooting, metrics, packages, command line, OpenAPI, man page, dashboards, the README and schema of the Helm chart
	$(BIN)/python -m sluice.cli.config_reference > docs/reference/settings.md
	$(BIN)/python -m sluice.cli.man_page > sluice/sluice.1
	$(BIN)/python -m tools.docs.errors_page
	$(BIN)/python -m tools.docs.jvm_messages
	$(BIN)/python -m tools.docs.wire_tables
	$(BIN)/python -m tools.docs.troubleshooting_page
	$(BIN)/python -m tools.docs.metrics_page
	$(BIN)/python -m tools.docs.openapi_document
	$(BIN)/python -m tools.docs.packages_page
	$(BIN)/python -m tools.dashboards.generate
	$(BIN)/python -m tools.docs.command_line_page
	$(BIN)/python -m tools.docs.helm_chart

docs-site: setup ## the documentation as a site in build/site; broken links and anchors fail it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

# The tools of supply chain, releases and workflows, apart from what Sluice runs with.
$(SUPPLY_STAMP): requirements/supply-chain.txt
	@echo "Installing the tools of the supply chain into $(SUPPLY_VENV)"
	@rm -rf $(SUPPLY_VENV) && $(PYTHON) -m venv $(SUPPLY_VENV)
	$(SUPPLY_VENV)/bin/python -m pip install --quiet --require-hashes --requirement requirements/supply-chain.txt
	@touch $@

constraints: $(SUPPLY_STAMP) ## pin the newest versions that pyproject.toml allows, or with UPGRADE= only what is new
	$(SUPPLY_VENV)/bin/python -m tools.supply.lock $(UPGRADE)

maven-checksums: ## write down the SHA-256 of all that Maven fetches for the jar and for Spark's suites
	$(PYTHON) -m tools.supply.maven record
	$(PYTHON) -m tools.spark_suites.class_path record

sbom: setup $(SUPPLY_STAMP) ## CycloneDX files of wheel, jar and images in build/sbom
	$(SUPPLY_VENV)/bin/python -m tools.supply.sbom

audit: $(SUPPLY_STAMP) ## known vulnerabilities of what requirements/ pins
	$(SUPPLY_VENV)/bin/python -m tools.supply.audit

changelog: setup ## gather the fragments of changes/ into CHANGELOG.md, for VERSION=X.Y.Z
	$(BIN)/towncrier build --yes --version $(VERSION)

release: setup $(SUPPLY_STAMP) ## everything in a release in build/release, its wheels tried in a new environment; RELEASE_PYTHONS="python3.11 python3.12", TAG=vX.Y.Z for the real one
	$(BIN)/python -m tools.release.build $(addprefix --python ,$(RELEASE_PYTHONS)) \
	  $(if $(TAG),--tag $(TAG))

clean: ## what this file made, the virtual environment too
	rm -rf $(VENV) $(JVM)/target $(dir $(JAR)) build dist .mypy_cache .pytest_cache .ruff_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +
