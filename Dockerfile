# Two images: `--target taskmanager` is the daemon, `--target spark` is Spark with the plugin.
# Builds on any engine, with or without BuildKit. Package sources other than the public ones come
# with the base image: give another one with --build-arg PYTHON_IMAGE.
# What is pinned how, and how it is renewed: docs/operate/supply-chain.md.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON_IMAGE} AS base
# One user for daemons and executors: the Unix socket between them is open to its group only.
# Volumes take over the owner of the directory that they are mounted at. Group 0 has the rights of
# the owner, because OpenShift runs a container as any user of that group.
RUN groupadd --gid 10001 sluice \
 && useradd --uid 10001 --gid sluice --no-create-home --home-dir /tmp --shell /usr/sbin/nologin sluice \
 && install -d -o sluice -g root -m 0770 /run/sluice /run/sluice-secret /run/sluice-token \
      /run/sluice-monitoring /var/lib/sluice \
      /run/sluice-tls /run/certificates /run/certificates/authority /run/certificates/taskmanager-1 \
      /run/certificates/taskmanager-2 /run/certificates/spark /run/certificates/spark-settings
ENV PATH=/opt/sluice/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1


# The plugin's jar: the one that `make jar` has built, unless its sources are newer or it is not
# there; then Maven builds it here.
FROM base AS jar
WORKDIR /build
COPY spark_integration spark_integration
COPY tests/vectors tests/vectors
COPY tools/supply/maven.py tools/supply/maven.py
RUN jar=spark_integration/jars/sluice-spark.jar; \
    if [ ! -f "$jar" ] || [ -n "$(find spark_integration/jvm -type f -newer "$jar" -print -quit)" ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends maven openjdk-17-jdk-headless \
      && mvn -q -B -DskipTests -f spark_integration/jvm/pom.xml package \
      && python tools/supply/maven.py verify || exit 1; \
    fi


# Dependencies before sources, so that a changed source does not install them again. Each one is a
# distribution whose SHA-256 is in requirements/.
FROM base AS taskmanager-environment
WORKDIR /build
RUN python -m venv /opt/sluice
COPY requirements requirements
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/taskmanager.txt


# PySpark has a source distribution only. It is built with what requirements/build.txt pins: in an
# isolated build, pip would fetch setuptools by name, whatever its hash.
FROM taskmanager-environment AS spark-environment
RUN python -m venv /tmp/build \
 && /tmp/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/build.txt \
 && /tmp/build/bin/pip wheel --no-cache-dir --require-hashes --no-build-isolation --wheel-dir /tmp/wheels --requirement requirements/spark.txt \
 && pip install --no-cache-dir --no-index --find-links /tmp/wheels pyspark \
 && rm -rf /tmp/build /tmp/wheels


# The data path is compiled: the images need no compiler, only what builds their wheel.
FROM base AS wheel
WORKDIR /build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && { [ -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
      || apt-get install -y --no-install-recommends python3-dev; } \
 && rm -rf /var/lib/apt/lists/*
COPY requirements requirements
RUN python -m venv /tmp/build \
 && /tmp/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: \
    --requirement requirements/build.txt --requirement requirements/taskmanager.txt
COPY pyproject.toml hatch_build.py mypyc.ini README.md CHANGELOG.md LICENSE NOTICE ./
COPY sluice sluice
COPY protocol protocol
COPY transport transport
COPY shuffle shuffle
COPY --from=jar /build/spark_integration spark_integration
RUN HATCH_BUILD_HOOKS_ENABLE=1 \
    /tmp/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .


FROM taskmanager-environment AS taskmanager-installed
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && python -m compileall -q /opt/sluice/lib


FROM base AS taskmanager
# The kernel ignores SIGTERM for the first process of a container until that process has a handler,
# which takes Python a moment; tini has one at once. -s: tini also works if it is not the first
# process, as with `init: true` or in a pod with a shared process namespace.
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/*
COPY --from=taskmanager-installed /opt/sluice /opt/sluice
USER sluice
WORKDIR /var/lib/sluice
ENV SLUICE_DATA_DIRECTORIES=/var/lib/sluice \
    SLUICE_MEMORY_DIRECTORY=/dev/shm/sluice \
    SLUICE_SOCKET_PATH=/run/sluice/taskmanager.sock
EXPOSE 7337 7338
ENTRYPOINT ["tini", "-s", "--", "sluice"]
CMD ["taskmanager"]


FROM spark-environment AS spark-installed
COPY --from=wheel /wheels /wheels
# Two paths for settings to name, whatever the version of Python.
RUN pip install --no-cache-dir --no-deps /wheels/*.whl \
 && ln -s /opt/sluice/lib/python3.*/site-packages/pyspark /opt/sluice/spark \
 && ln -s /opt/sluice/lib/python3.*/site-packages/sluice/spark_integration/jars/sluice-spark.jar /opt/sluice/ \
 && python -m compileall -q /opt/sluice/lib


FROM base AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
RUN install -d -o sluice -g root -m 0770 /var/lib/spark
COPY --from=spark-installed /opt/sluice /opt/sluice
COPY docker/spark /etc/spark
COPY docker/jobs /opt/jobs
COPY docker/spark-entrypoint.sh /opt/
# Master and worker do little: a small collector and the quick compiler are enough for them.
ENV SPARK_HOME=/opt/sluice/spark \
    SPARK_CONF_DIR=/etc/spark \
    SPARK_LOCAL_DIRS=/var/lib/spark/local \
    SPARK_WORKER_DIR=/var/lib/spark/work \
    SPARK_DAEMON_MEMORY=256m \
    SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1" \
    PYSPARK_PYTHON=/opt/sluice/bin/python \
    PYTHONHASHSEED=0
USER sluice
WORKDIR /var/lib/spark
EXPOSE 7077 8080 8081
ENTRYPOINT ["/opt/spark-entrypoint.sh"]
CMD ["spark-submit", "/opt/jobs/demo.py"]
