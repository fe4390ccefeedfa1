"""Checks of docker-compose.yml that need no engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from sluice.shuffle.taskmanager.store.tiers.memory_tier import SPARED_PART
from sluice.transport.config import TransportConfig
from tests.compose.engine import OPEN_FILES
from tests.support.http_servers import page_serving

REPOSITORY = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = yaml.safe_load(
    (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
)["services"]
CHECKS = {
    name: service["healthcheck"]["test"]
    for name, service in SERVICES.items()
    if "python" in service.get("healthcheck", {}).get("test", ())
}
PORTS = ("7338", "8080", "8081")


def run_check(name: str, port: int) -> int:
    """Run a health check with another port, and with a proxy in the environment."""
    command = [sys.executable, *CHECKS[name][2:]]
    for fixed in PORTS:
        command[-1] = command[-1].replace(f", {fixed},", f", {port},")
    assert str(port) in command[-1]
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:1")
    environment = {key: text for key, text in os.environ.items() if key.lower() != "no_proxy"}
    done = subprocess.run(
        command, capture_output=True, timeout=60, check=False, env=environment | proxies
    )
    return done.returncode


@pytest.mark.parametrize("name", CHECKS)
def test_a_health_check_ignores_a_proxy(name):
    with page_serving("{}") as port:
        assert run_check(name, port) == 0
    with page_serving("{}", 503) as port:
        assert run_check(name, port) == 1
    assert run_check(name, 1) == 1


def test_taskmanagers_are_healthy_while_they_are_full_or_drain():
    assert {name for name in CHECKS if "taskmanager" in name} == {"taskmanager-1", "taskmanager-2"}
    for name in ("taskmanager-1", "taskmanager-2"):
        assert "/healthz" in CHECKS[name][-1]
        assert "/readyz" not in CHECKS[name][-1]


@pytest.mark.parametrize("name", SERVICES)
def test_the_log_of_every_container_has_a_limit(name):
    options = SERVICES[name]["logging"]["options"]
    assert options == {"max-size": "10m", "max-file": "3"}


@pytest.mark.parametrize("name", ["taskmanager-1", "taskmanager-2"])
def test_taskmanagers_may_have_as_many_open_files_as_connections(name):
    files = f"${{SLUICE_OPEN_FILES:-{OPEN_FILES}}}"
    assert SERVICES[name]["ulimits"] == {"nofile": {"soft": files, "hard": files}}
    assert 2 * TransportConfig().max_connections <= OPEN_FILES


@pytest.mark.parametrize("name", ["taskmanager-1", "taskmanager-2"])
def test_shared_memory_holds_the_memory_tier_and_what_it_leaves_free(name):
    service = SERVICES[name]
    tier_mib = int(service["environment"]["SLUICE_MEMORY_TIER_BYTES"].removesuffix(" MiB"))
    room_mib = int(service["shm_size"].removesuffix("m"))
    assert room_mib - room_mib // SPARED_PART > tier_mib


def sources(name: str) -> dict[str, Path]:
    """Return the files and folders of the repository that a container sees, by place there."""
    mounts = (str(each).split(":") for each in SERVICES[name]["volumes"])
    return {mount[1]: REPOSITORY / mount[0] for mount in mounts if mount[0].startswith("./")}


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_the_image_of_others_has_a_digest(name):
    assert re.search(r":-[\w./-]+:v?[\d.]+@sha256:[0-9a-f]{64}\}$", SERVICES[name]["image"])


def test_prometheus_loads_the_alerts_and_scrapes_in_the_job_that_they_name():
    seen = sources("prometheus")
    assert all(path.is_file() for path in seen.values())
    config = yaml.safe_load(seen["/etc/prometheus/prometheus.yml"].read_text(encoding="utf-8"))
    assert config["rule_files"] == ["/etc/prometheus/alerts.yml"]
    assert 'up{job="sluice"}' in seen["/etc/prometheus/alerts.yml"].read_text(encoding="utf-8")
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert {"sluice", "sluice-applications"} <= jobs.keys()
    token = jobs["sluice-applications"]["authorization"]["credentials_file"]
    (folder,) = (
        str(each).split(":")[1]
        for each in SERVICES["prometheus"]["volumes"]
        if str(each).startswith("monitoring-token:")
    )
    assert token == f"{folder}/token"
    assert token in SERVICES["credentials"]["command"][0]


def test_grafana_has_the_dashboards_and_asks_the_prometheus_beside_it():
    seen = sources("grafana")
    provisioning = seen["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/sluice.yml").read_text())["providers"]
    folder = seen[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (folder / home.name).is_file()
    assert str(home.parent) == provider["options"]["path"]
    assert len(list(folder.glob("*.json"))) == 3
