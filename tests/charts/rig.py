"""Renders the Helm chart with values, and checks the objects with kubeconform."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # of mkdocs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "sluice"
HELM = ROOT / "build" / "charts" / "helm"
KUBECONFORM = ROOT / "build" / "charts" / "kubeconform"
SCHEMAS = Path(__file__).parent / "schemas"

RELEASE = "sluice"
NAMESPACE = "shuffle"
KUBERNETES = "1.34.0"
MONITORING = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")

needs_helm = pytest.mark.skipif(
    not (HELM.exists() and KUBECONFORM.exists()), reason="needs Helm: run make chart-tools"
)

Values = dict[str, Any]


@dataclass(frozen=True)
class Branch:
    """Values with which the chart is rendered."""

    values: Values
    api_versions: tuple[str, ...] = ()


class Rendered(list[dict[str, Any]]):
    """The objects of a release."""

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """Return the only object of a kind, or that with a name."""
        found = [
            each
            for each in self
            if each["kind"] == kind and name in (None, each["metadata"]["name"])
        ]
        assert len(found) == 1, f"{len(found)} objects of kind {kind}"
        return found[0]

    def kinds(self) -> list[str]:
        return sorted(each["kind"] for each in self)

    @property
    def workload(self) -> dict[str, Any]:
        """The DaemonSet or StatefulSet."""
        return next(each for each in self if each["kind"] in ("DaemonSet", "StatefulSet"))

    @property
    def pod(self) -> dict[str, Any]:
        """The specification of a pod."""
        spec: dict[str, Any] = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        """The container of the TaskManager."""
        found: dict[str, Any] = self.pod["containers"][0]
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """Variables of the container: values, or paths of fields."""
        return {
            each["name"]: each["value"]
            if "value" in each
            else each["valueFrom"]["fieldRef"]["fieldPath"]
            for each in self.container["env"]
        }

    @property
    def toml(self) -> str:
        """The file of settings."""
        text: str = self.one("ConfigMap", self.workload["metadata"]["name"])["data"][
            "taskmanager.toml"
        ]
        return text

    def mounts(self) -> dict[str, dict[str, Any]]:
        """Return the volumes of the container by their mount paths."""
        volumes = {each["name"]: each for each in self.pod["volumes"]}
        claims = self.workload["spec"].get("volumeClaimTemplates", ())
        volumes |= {each["metadata"]["name"]: each for each in claims}
        return {each["mountPath"]: volumes[each["name"]] for each in self.container["volumeMounts"]}


def helm(
    command: list[str], values: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of Helm with values."""
    with tempfile.TemporaryDirectory() as home:  # Helm keeps a cache there
        return subprocess.run(
            [str(HELM), *command, "--values", "-"],
            input=json.dumps(values),  # JSON is YAML, and has one form for each value
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            # Nothing of a cluster or of another chart on this host.
            env={"PATH": os.environ["PATH"], "HOME": home, **(environment or {})},
        )


def template(values: Mapping[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """Run `helm template`."""
    command = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    return helm([*command, "--kube-version", KUBERNETES, *options], values)


def render_text(values: Mapping[str, Any], *api_versions: str) -> str:
    """Render the chart as YAML."""
    return _render(json.dumps(values), api_versions)


@functools.cache
def _render(values: str, api_versions: tuple[str, ...]) -> str:
    done = template(json.loads(values), *(f"--api-versions={each}" for each in api_versions))
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Mapping[str, Any], *api_versions: str) -> Rendered:
    """Render the chart."""
    return Rendered(objects_of(render_text(values, *api_versions)))


def objects_of(text: str) -> Iterator[dict[str, Any]]:
    return (each for each in yaml.safe_load_all(text) if each is not None)


def refusal(values: Mapping[str, Any]) -> str:
    """Return why the chart refuses values."""
    done = template(values)
    assert done.returncode != 0, "the values are accepted"
    assert done.stdout == ""
    return "\n".join(line for line in done.stderr.splitlines() if "symbolic link" not in line)


def conform(text: str) -> str:
    """Return what kubeconform finds wrong; empty: nothing."""
    done = subprocess.run(
        [
            str(KUBECONFORM),
            "-strict",
            f"-schema-location={SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
            "-",
        ],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def nested(path: str, value: object) -> Values:
    """Return a value of the chart at a path such as ``tls.issuer.name``."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value
