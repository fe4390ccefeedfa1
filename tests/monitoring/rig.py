"""A real Prometheus, and the queries of the committed dashboards and alerts."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from tests.support.free_ports import free_ports
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
"""The alert rules by name."""
SELECTOR = re.compile(r"\b(?:sluice_[a-z_]+|up)(?:\{[^}]*\})?")
"""A selector of an alert; its expressions have no other words of this form."""

SCRAPE_SECONDS = 1
START_SECONDS = 30
ANSWER_SECONDS = 10
VARIABLES = {
    "$__rate_interval": f"{10 * SCRAPE_SECONDS}s",
    "$application": ".*",
    "$instance": ".*",
    "$job": ".*",
}
"""Values of the variables in the queries of dashboards: everything is chosen."""
READY = re.compile("Server is ready to receive web requests")


class PanelQuery(NamedTuple):
    """A query of a panel, with the variables replaced."""

    dashboard: str
    panel: str
    expression: str


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the committed dashboards by their names."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(DASHBOARDS.glob("*.json"))
    }


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without its rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def panel_queries() -> Iterator[PanelQuery]:
    """Return the queries of all dashboards."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                yield PanelQuery(name, panel["title"], expression)


class Prometheus:
    """A Prometheus that scrapes TaskManagers and evaluates the alerts; a context manager.

    Args:
        directory: Receives everything that it writes.
        daemons: The TaskManagers.
    """

    def __init__(self, directory: Path, daemons: Sequence[Daemon]) -> None:
        self._directory = directory
        self._targets = [f"{daemon.host}:{daemon.http_port}" for daemon in daemons]
        self._port = free_ports(1)
        self._process: ManagedProcess | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir()
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()), encoding="utf-8")
        self._process = ManagedProcess(
            "Prometheus",
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            log_path=self._directory / "prometheus.log",
            environment=os.environ,
            directory=self._directory,
        )
        try:
            self._process.wait_for_line(READY, START_SECONDS)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.stop()

    def values(self, expression: str) -> list[float]:
        """Return the values of a query now.

        Raises:
            urllib.error.HTTPError: It is not a query.
        """
        words = urllib.parse.urlencode({"query": expression})
        answer = self._get(f"/api/v1/query?{words}")
        return [float(series["value"][1]) for series in answer["result"]]

    def health(self) -> dict[str, str]:
        """Return the outcome of the last evaluation of each alert."""
        groups = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)["data"]

    def _config(self) -> dict[str, Any]:
        targets = [{"targets": self._targets}]
        pages = {"sluice": "/metrics", "sluice-applications": "/metrics/applications"}
        seconds = f"{SCRAPE_SECONDS}s"
        return {
            "global": {"scrape_interval": seconds, "evaluation_interval": seconds},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": job, "metrics_path": path, "static_configs": targets}
                for job, path in pages.items()
            ],
        }
