"""Checks of the running stack; each raises when it fails."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.compose.commands import ComposeTestFailed, wait_until
from tests.compose.stack import (
    ADDRESS,
    ONE_SHOTS,
    SERVICES,
    TASKMANAGERS,
    WORKERS,
    Stack,
    Submitted,
)

_HTTP_SECONDS = 10
_JOB_SECONDS = 600
_SCRAPED_SECONDS = 60
_RELEASED_SECONDS = 120
"""More than application_expiry_seconds, for a driver that died without a word."""
_OWN_SHUFFLE = ("spark-submit", "--properties-file", "/etc/spark/spark-own-shuffle.conf")
_DEMO = "/opt/jobs/demo.py"
_JOBS = Path(__file__).resolve().parent / "jobs"
_STRANGER = Path(__file__).resolve().parent / "stranger.py"
_SOCKET = "unix:/run/sluice/taskmanager.sock"
_ENDPOINTS = (_SOCKET, *(f"{name}:7337" for name in TASKMANAGERS))
_TLS = "/run/sluice-tls"
_OWN_TOKEN = (
    "cd /tmp; sluice secret create other >/dev/null; sluice token create --secret-file other"
)
_OWN_CERTIFICATE = f"""
mkdir /tmp/foreign
cd /tmp/foreign
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=spark \\
  -keyout key.pem -out certificate.pem
cat {_TLS}/authority.pem certificate.pem >both.pem
"""
"""Trusts the TaskManagers too: otherwise the client finds out by itself, and connects to none."""
_MANAGER = "io.sluice.spark.SluiceShuffleManager"
_PROMETHEUS_PORT = 9090
_HTTP_PORTS = dict(zip(TASKMANAGERS, (7338, 7339), strict=True))
_ALERTS = 15
_NOBODY, _SLUICE = "65534:65534", "sluice"
_COUNTERS = (
    'sluice_received_bytes_total{leg="producer"}',
    "sluice_region_area_received_bytes_total",  # by the volume that the containers of a host share
    'sluice_received_bytes_total{leg="peer"}',
    'sluice_sent_bytes_total{leg="consumer",source="local"}',
    'sluice_sent_bytes_total{leg="consumer",source="remote"}',
    "sluice_credits_received_total",
    'sluice_map_outputs_finished_total{outcome="committed"}',
    'sluice_taskmanager_info{data_path="compiled"}',  # the images are built so
    "sluice_tls_certificate_expiry_timestamp_seconds",
)
"""Metrics that are above 0 on both hosts after a shuffle between them."""


def containers_are_confined(stack: Stack) -> None:
    """No container runs as root, can gain rights, or can write to its image."""
    for service in (*SERVICES, *ONE_SHOTS):
        facts = stack.inspect(service)
        user, host = facts["Config"]["User"], facts["HostConfig"]
        expected = _NOBODY if service == "prometheus" else _SLUICE
        if user != expected or not host["ReadonlyRootfs"] or host["CapDrop"] != ["ALL"]:
            raise ComposeTestFailed(
                f"{service} runs as {user!r} (expected {expected!r}), read-only:"
                f" {host['ReadonlyRootfs']}, capabilities dropped: {host['CapDrop']}"
            )
        if not host["Memory"] or not host["PidsLimit"]:
            raise ComposeTestFailed(f"{service} has no limit of memory or processes")


def stranger_is_refused(stack: Stack) -> None:
    """Without certificate and credential of this cluster, nobody gets into a port or a socket.

    A certificate is for TCP alone; for the credential, socket and ports are the same. The same
    steps work for the owner.
    """
    worker = WORKERS[0]
    stack.exec(worker, "sh", "-euc", _OWN_CERTIFICATE)
    another = stack.exec(worker, "sh", "-euc", _OWN_TOKEN)
    nothing: dict[str, str] = {}
    own, submit = _credential(another), _credential(_submit_token(stack))
    authority = ("--authority", f"{_TLS}/authority.pem")
    foreign = ("--authority", "/tmp/foreign/both.pem", "--certificate", "/tmp/foreign")
    right = (*authority, "--certificate", _TLS)
    unproven, wrong = "AUTHENTICATION_REQUIRED", "AUTHENTICATION_FAILED"
    plain, none, unknown = (
        f"CONFIGURATION .*{text}"
        for text in ("This port speaks TLS only", "alert certificate required", "alert unknown ca")
    )
    for who, variables, options, by_socket, by_tcp in (
        ("a stranger without TLS", nothing, (), unproven, plain),
        ("the owner without TLS", submit, (), "OPEN", plain),
        ("the owner without a certificate", submit, authority, "OPEN", none),
        ("the owner with a foreign certificate", submit, foreign, "OPEN", unknown),
        ("a stranger with the certificate", nothing, right, unproven, unproven),
        ("a stranger with a token of its own", own, right, wrong, wrong),
        ("the owner", submit, right, "OPEN", "OPEN"),
    ):
        command = ("python", "-c", _STRANGER.read_text(encoding="utf-8"), *options, *_ENDPOINTS)
        said = stack.exec(worker, *command, variables=variables).split("\n")
        for endpoint in _ENDPOINTS:
            expected = by_socket if endpoint == _SOCKET else by_tcp
            if not any(re.match(f"{re.escape(endpoint)} {expected}", line) for line in said):
                raise ComposeTestFailed(f"{who} did not get {expected} at {endpoint}: {said}")


def keys_are_kept(stack: Stack) -> None:
    """Each private key is in the containers of its owner alone, readable for their user only."""
    prints = set()
    for service in (*TASKMANAGERS, *WORKERS):
        listing = ("find", _TLS, "-type", "f", "-printf", "%f %m %u\\n")
        files = sorted(stack.exec(service, *listing).split("\n"))
        expected = [f"{name}.pem 600 {_SLUICE}" for name in ("authority", "certificate", "key")]
        if [each for each in files if each] != expected:
            raise ComposeTestFailed(f"{service} has {files} in {_TLS}, expected {expected}")
        prints.add(stack.exec(service, "sha256sum", f"{_TLS}/key.pem"))
    if len(prints) != len(TASKMANAGERS) + 1:
        raise ComposeTestFailed(f"TaskManagers and Spark have {len(prints)} different keys")
    having = [
        service
        for service in (*SERVICES, *ONE_SHOTS)
        for mount in stack.inspect(service)["Mounts"]
        if mount.get("Name", "").endswith("_tls-authority")
    ]
    if having != ["certificates"]:
        raise ComposeTestFailed(f"the key of the authority is in {having}")


def master_refuses_strangers(stack: Stack) -> None:
    """The Spark master lets in no driver without its secret; the driver then gives up by itself."""
    plain = ("--conf", "spark.authenticate=false", "--conf", "spark.network.crypto.enabled=false")
    with stack.submit("stranger", *_OWN_SHUFFLE, *plain, _DEMO) as job:
        try:
            said = job.finish(_JOB_SECONDS)
        except ComposeTestFailed:
            said = job.said
            if "All masters are unresponsive" not in said:
                raise
        else:
            raise ComposeTestFailed(f"the Spark master let in a driver without the secret:\n{said}")


def names_are_for_the_owner(stack: Stack) -> None:
    """The status of a TaskManager, which has names, needs a token; its health does not."""
    for port in _HTTP_PORTS.values():
        url = f"http://{ADDRESS}:{port}"
        _get(f"{url}/readyz")
        _get(f"{url}/api/v1/status", stack.access_token)
        try:
            _get(f"{url}/api/v1/status")
        except ComposeTestFailed as error:
            if "401" not in str(error):
                raise
        else:
            raise ComposeTestFailed(f"{url} tells names to whoever asks")


def same_result_as_spark(stack: Stack) -> str:
    """The documented job gives what it gives with Spark's own shuffle, and used Sluice.

    Returns its digest.
    """
    with stack.submit("demo") as job:
        ours = _facts(job, _JOB_SECONDS)
    if ours["shuffle"] != _MANAGER:
        raise ComposeTestFailed(f"the demo job used {ours['shuffle']}, expected {_MANAGER}")
    with stack.submit("own", *_OWN_SHUFFLE, _DEMO) as job:
        own = _facts(job, _JOB_SECONDS)
    if own["shuffle"] != "sort":
        raise ComposeTestFailed(f"the job to compare with used {own['shuffle']}, expected sort")
    if ours["digest"] != own["digest"]:
        raise ComposeTestFailed(f"results differ: Sluice {ours}, Spark's own shuffle {own}")
    print(f"  seconds: Sluice {ours['seconds']}, Spark's own shuffle {own['seconds']}")
    return ours["digest"]


def same_result_again(stack: Stack, digest: str) -> None:
    """The documented job still gives that digest."""
    with stack.submit("again") as job:
        facts = _facts(job, _JOB_SECONDS)
    if facts["digest"] != digest:
        raise ComposeTestFailed(f"digest {facts['digest']}, before it was {digest}")


def prometheus_has_scraped(stack: Stack) -> None:
    """Prometheus has counters above 0, from both TaskManagers."""
    for counter in _COUNTERS:

        def scraped(query: str = counter) -> bool | str:
            values = _query(query)
            return all(values.get(f"{name}:7338", 0) > 0 for name in TASKMANAGERS) or str(values)

        wait_until(f"{counter} above 0", scraped, timeout_seconds=_SCRAPED_SECONDS)
    up = _query('up{job="sluice"}')
    if sorted(up.values()) != [1.0, 1.0]:
        raise ComposeTestFailed(f"not both TaskManagers are up for Prometheus: {up}")


def alerts_are_loaded(stack: Stack) -> None:
    """Prometheus evaluates all alerts without an error, and reads what applications hold."""

    def evaluated() -> bool | str:
        groups = _get(f"http://{ADDRESS}:{_PROMETHEUS_PORT}/api/v1/rules")["data"]["groups"]
        health = [rule["health"] for group in groups for rule in group["rules"]]
        return health == ["ok"] * _ALERTS or str(health)

    wait_until("all alerts evaluated", evaluated, timeout_seconds=_SCRAPED_SECONDS)
    up = _query('up{job="sluice-applications"}')
    if sorted(up.values()) != [1.0, 1.0]:
        raise ComposeTestFailed(f"not both pages of applications are read by Prometheus: {up}")


def released_after_jobs(stack: Stack) -> None:
    """No TaskManager holds a map output, a gate or a stored byte of a job that has ended."""
    for name, port in _HTTP_PORTS.items():

        def idle(port: int = port) -> bool | str:
            status = _get(f"http://{ADDRESS}:{port}/api/v1/status", stack.access_token)
            used = sum(tier["used_bytes"] for tier in status["storage"])
            left = (status["partitions"], status["gates"], used)
            return left == ([], [], 0) or f"map outputs {left[0]}, gates {left[1]}, {used} B"

        wait_until(f"{name} holds nothing", idle, timeout_seconds=_RELEASED_SECONDS)


def killed_taskmanager_is_survived(stack: Stack) -> None:
    """A TaskManager dies after the map stage: only its map outputs run again, result right."""
    victim = TASKMANAGERS[1]
    command = (
        *("spark-submit", "--conf", "spark.cores.max=2"),
        # Both workers get map tasks: none starts before both executors are there.
        *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
        *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=60s"),
        *("/mounted/interrupted.py", "--resume", "/tmp/resume"),
    )
    with stack.submit("interrupted", *command, mount=_JOBS) as job:
        before = json.loads(job.wait_for_line('{"stage": "mapped"', _JOB_SECONDS))
        held = {name: _map_outputs(stack, port) for name, port in _HTTP_PORTS.items()}
        if not all(held.values()):
            raise ComposeTestFailed(f"not both TaskManagers hold map outputs: {held}")
        stack.kill(victim)
        stack.engine.docker("exec", job.container, "sh", "-c", "echo go >/tmp/resume")
        after = json.loads(job.wait_for_line('{"stage": "reduced"', _JOB_SECONDS))
        job.finish(_JOB_SECONDS)
    again = after["map_runs"] - before["map_runs"]
    if not after["right"]:
        raise ComposeTestFailed(f"wrong result after {victim} was killed: {after}")
    if again != held[victim]:
        raise ComposeTestFailed(
            f"{victim} held {held[victim]} map outputs, {again} map tasks ran again"
        )
    print(f"  {again} of {before['map_runs']} map tasks ran again")


def killed_taskmanager_comes_back(stack: Stack) -> None:
    """Started again, it is healthy and Prometheus sees it."""
    victim = TASKMANAGERS[1]
    stack.start(victim)
    stack.wait_healthy(victim)

    def scraped() -> bool | str:
        up = _query('up{job="sluice"}')
        return up.get(f"{victim}:7338") == 1.0 or str(up)

    wait_until(f"Prometheus scrapes {victim}", scraped, timeout_seconds=_SCRAPED_SECONDS)


def workers_are_registered(stack: Stack) -> None:
    """The Spark master knows both workers."""

    def registered() -> bool | str:
        workers = _get(f"http://{ADDRESS}:8080/json/")["workers"]
        alive = sorted(worker["host"] for worker in workers if worker["state"] == "ALIVE")
        return alive == sorted(WORKERS) or str(alive)

    wait_until("both workers registered", registered, timeout_seconds=_SCRAPED_SECONDS)


def _facts(job: Submitted, timeout_seconds: float) -> dict[str, str]:
    """The lines ``name: value`` that the demo job ends with."""
    said = job.finish(timeout_seconds)
    names = ("seconds", "shuffle", "digest")
    facts = {
        name: line.removeprefix(f"{name}:").strip()
        for line in said.splitlines()
        for name in names
        if line.startswith(f"{name}:")
    }
    if len(facts) != len(names):
        raise ComposeTestFailed(f"the demo job printed no result:\n{said[-4000:]}")
    return facts


def _map_outputs(stack: Stack, port: int) -> int:
    status = _get(f"http://{ADDRESS}:{port}/api/v1/status", stack.access_token)
    return sum(shuffle["committed_map_outputs"] for shuffle in status["partitions"])


def _query(expression: str) -> dict[str, float]:
    """A Prometheus query's values by instance."""
    words = urllib.parse.urlencode({"query": expression})
    answer = _get(f"http://{ADDRESS}:{_PROMETHEUS_PORT}/api/v1/query?{words}")
    return {
        series["metric"].get("instance", ""): float(series["value"][1])
        for series in answer["data"]["result"]
    }


def _submit_token(stack: Stack) -> str:
    return stack.exec(TASKMANAGERS[0], "sluice", "token", "create", "--expires", "30m")


def _credential(token: str) -> dict[str, str]:
    return {"SLUICE_CREDENTIAL": token.strip()}


def _get(url: str, token: str | None = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise ComposeTestFailed(f"{url}: {error}") from error
