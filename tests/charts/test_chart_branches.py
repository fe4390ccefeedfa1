"""Every branch of the chart renders objects that Kubernetes and a TaskManager accept."""

from __future__ import annotations

import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig, load
from tests.charts.branches import BRANCHES, OF_A_MODE
from tests.charts.pod_security import violations
from tests.charts.rig import (
    CHART,
    HELM,
    KUBERNETES,
    NAMESPACE,
    Branch,
    Rendered,
    conform,
    helm,
    needs_helm,
    render,
    render_text,
)
from tools.docs.helm_chart import VALUES, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_helm


def _parameters(prefix: str = "") -> list[Any]:
    """Return the branches; one worker runs all tests of a branch, so it is rendered once."""
    return [
        pytest.param(branch, id=name, marks=pytest.mark.xdist_group(f"chart {name}"))
        for name, branch in BRANCHES.items()
        if name.startswith(prefix)
    ]


each_branch = pytest.mark.parametrize("branch", _parameters())
CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding")


def rendered(branch: Branch) -> Rendered:
    return render(branch.values, *branch.api_versions)


def config_of(objects: Rendered, directory: Path) -> TaskManagerConfig:
    """Load the settings of a pod as its TaskManager does, with fields for an example."""
    file = directory / "taskmanager.toml"
    file.write_text(objects.toml, encoding="utf-8")
    fields = ("SLUICE_ADVERTISED_HOST", "SLUICE_NODE")
    variables = {
        name: "example" if name in fields else value.replace("$(POD_IP)", "10.0.0.1")
        for name, value in objects.environment.items()
    }
    return load(file, variables, {})


@each_branch
def test_kubernetes_accepts_every_object(branch: Branch):
    assert conform(render_text(branch.values, *branch.api_versions)) == ""


@each_branch
def test_a_taskmanager_accepts_its_settings(branch: Branch, tmp_path: Path):
    config_of(rendered(branch), tmp_path)


@each_branch
def test_lint_finds_nothing(branch: Branch):
    done = helm(["lint", "--strict", str(CHART), "--kube-version", KUBERNETES], branch.values)
    assert done.returncode == 0, done.stdout + done.stderr


@each_branch
def test_objects_have_unique_names_and_labels(branch: Branch):
    objects = rendered(branch)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    own = [each for each in objects if "labels" in each["metadata"]]
    for each in own:
        assert each["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        is_cluster_wide = each["kind"] in CLUSTER_WIDE
        assert each["metadata"].get("namespace") == (None if is_cluster_wide else NAMESPACE)


@each_branch
def test_selectors_find_the_pods(branch: Branch):
    objects = rendered(branch)
    labels = objects.workload["spec"]["template"]["metadata"]["labels"].items()
    selectors = [objects.workload["spec"]["selector"]["matchLabels"]]
    selectors += [objects.one("Service")["spec"]["selector"]]
    selectors += [
        each["spec"]["podSelector" if each["kind"] == "NetworkPolicy" else "selector"][
            "matchLabels"
        ]
        for each in objects
        if each["kind"] in ("NetworkPolicy", "PodDisruptionBudget", "PodMonitor")
    ]
    selectors += [
        each["labelSelector"]["matchLabels"]
        for each in objects.pod.get("topologySpreadConstraints", ())
    ]
    for selector in selectors:
        assert selector.items() <= labels
        assert len(selector) == 3


@each_branch
def test_every_mount_of_a_pod_has_a_volume(branch: Branch):
    objects = rendered(branch)
    assert objects.mounts(), "a mount without a volume is a KeyError"
    made = {(each["kind"], each["metadata"]["name"]) for each in objects}
    made |= {
        ("Secret", each["spec"]["secretName"]) for each in objects if each["kind"] == "Certificate"
    }
    supplied = {branch.values.get("auth", {}).get("existingSecret")}
    supplied |= {branch.values.get("tls", {}).get("secretName")}
    for volume in objects.pod["volumes"]:
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            assert ("Secret", name) in made or name in supplied
            assert volume["secret"]["defaultMode"] == 0o440
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in made


@each_branch
def test_ports_are_those_of_the_settings(branch: Branch, tmp_path: Path):
    objects = rendered(branch)
    config = config_of(objects, tmp_path)
    expected = [config.transport.data_port + 2 * each for each in range(config.processes)]
    expected.append(config.http.http_port)
    assert [each["containerPort"] for each in objects.container["ports"]] == expected
    assert [each["port"] for each in objects.one("Service")["spec"]["ports"]] == expected
    for each in objects:
        if each["kind"] == "NetworkPolicy":
            data_rule, *http_rules = each["spec"]["ingress"]
            assert [port["port"] for port in data_rule["ports"]] == expected[:-1]
            for rule in http_rules:
                assert [port["port"] for port in rule["ports"]] == expected[-1:]


@each_branch
def test_the_grace_period_covers_the_drain(branch: Branch, tmp_path: Path):
    objects = rendered(branch)
    if "terminationGracePeriodSeconds" in branch.values.get("drain", {}):
        assert objects.pod["terminationGracePeriodSeconds"] == 77
        return
    command = objects.container["lifecycle"]["preStop"]["exec"]["command"]
    waits = max(int(word) for word in command if word.isdecimal())
    config = config_of(objects, tmp_path)
    closing = config.transport.close_timeout_seconds + 10
    least = waits + config.drain_timeout_seconds + closing
    assert objects.pod["terminationGracePeriodSeconds"] >= least + 10


@pytest.mark.parametrize("branch", _parameters("StatefulSet"))
def test_a_statefulset_obeys_the_restricted_standard(branch: Branch):
    if branch.values.get("podSecurityContext", {}) is None:
        assert violations(rendered(branch).pod)  # what the user removed is missing
        return
    assert violations(rendered(branch).pod) == []


@pytest.mark.parametrize("mode", OF_A_MODE)
def test_every_pod_restarts_when_its_settings_change(mode: str):
    def checksum(**config: object) -> str:
        objects = render({"mode": mode, "config": config})
        annotations = objects.workload["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/config"])

    assert checksum() == checksum()
    assert checksum() != checksum(log_level="debug")
    assert checksum() != checksum(storage={"scrub_bytes_per_second": "1 MiB"})


def test_a_package_has_the_alerts_and_dashboards(tmp_path: Path):
    """Helm follows the links into deploy/prometheus and deploy/grafana."""
    subprocess.run(
        [str(HELM), "package", str(CHART), "--destination", str(tmp_path)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (package,) = tmp_path.glob("sluice-*.tgz")
    with tarfile.open(package) as archive:
        members = {
            member.name.removeprefix("sluice/"): archive.extractfile(member)
            for member in archive.getmembers()
        }
        files = {name: file.read() for name, file in members.items() if file is not None}
    root = CHART.parents[1]
    assert files["files/alerts.yml"] == (root / "prometheus" / "alerts.yml").read_bytes()
    dashboards = sorted((root / "grafana" / "dashboards").glob("*.json"))
    assert len(dashboards) == 3
    for path in dashboards:
        assert files[f"files/dashboards/{path.name}"] == path.read_bytes()


def test_every_value_has_a_branch():
    """A value that no branch sets could be broken unnoticed."""

    def paths(values: dict[str, object], path: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in values.items():
            here = f"{path}.{name}".lstrip(".")
            found.add(here)
            if isinstance(value, dict):
                found |= paths(value, here)
        return found

    used = set().union(*(paths(branch.values) for branch in BRANCHES.values()))
    known = {row.path for row in rows(VALUES.read_text(encoding="utf-8"))}
    elsewhere = {
        # tests of bounds and of other files
        "autoscaling.maxReplicas",
        "autoscaling.metric",
        "autoscaling.minReplicas",
        "autoscaling.scaleDownStabilizationSeconds",
        "autoscaling.usedPercent",
        "clusterDomain",
        "drain.minimumSeconds",
        "drain.waitSeconds",
        "image.repository",
        "monitoring.dashboards.labels",
        "monitoring.podMonitor.interval",
        "monitoring.podMonitor.tokenKey",
        "storage.accessModes",
        "tls.days",
        "tls.issuer.group",
        "tls.issuer.kind",
    }
    assert known - used == elsewhere


def test_objects_of_both_modes_are_the_same_without_values():
    kinds = {mode: render({"mode": mode, "tls": {"source": "none"}}).kinds() for mode in OF_A_MODE}
    own = ("DaemonSet", "StatefulSet", "PodDisruptionBudget")
    assert [each for each in kinds["DaemonSet"] if each not in own] == [
        each for each in kinds["StatefulSet"] if each not in own
    ]
