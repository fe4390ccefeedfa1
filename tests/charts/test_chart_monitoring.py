"""Objects for the Prometheus operator and Grafana, made from the files of deploy."""

from __future__ import annotations

import json

import pytest
import yaml  # type: ignore[import-untyped]  # of mkdocs

from tests.charts.rig import MONITORING, ROOT, Values, needs_helm, render

pytestmark = needs_helm

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))


def made(create: str, *api_versions: str) -> list[str]:
    values: Values = {
        "monitoring": {
            name: {"create": create} for name in ("podMonitor", "prometheusRule", "dashboards")
        }
    }
    objects = render(values, *api_versions)
    return sorted(
        each["metadata"]["name"] if each["kind"] == "ConfigMap" else each["kind"]
        for each in objects
        if each["kind"] in ("PodMonitor", "PrometheusRule")
        or each["metadata"]["name"].endswith("-dashboards")
    )


ALL = ["PodMonitor", "PrometheusRule", "sluice-dashboards"]


@pytest.mark.parametrize(
    ("create", "found", "expected"),
    [
        ("auto", (), []),
        ("auto", MONITORING, ALL),
        ("auto", MONITORING[:1], ["PodMonitor"]),
        ("always", (), ALL),
        ("never", MONITORING, []),
    ],
)
def test_monitoring_is_made_if_the_operator_is_there_or_forced(create, found, expected):
    assert made(create, *found) == expected


def test_the_rule_has_the_alerts_of_the_repository():
    rule = render({}, *MONITORING).one("PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    assert len(rule["spec"]["groups"][0]["rules"]) > 10


def test_the_config_map_has_the_dashboards_of_the_repository():
    data = render({}, *MONITORING).one("ConfigMap", "sluice-dashboards")["data"]
    assert {name: json.loads(text) for name, text in data.items()} == {
        f"sluice-{path.name}": json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS
    }
    assert {name: text for name, text in data.items()} == {
        f"sluice-{path.name}": path.read_text(encoding="utf-8") for path in DASHBOARDS
    }


def test_the_job_is_the_one_that_alerts_and_dashboards_ask_for():
    monitor = render({}, *MONITORING).one("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling == {"targetLabel": "job", "replacement": "sluice"}
    assert f'job="{relabeling["replacement"]}"' in ALERTS.read_text(encoding="utf-8")
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    ports = {each["name"] for each in render({}).container["ports"]}
    assert endpoint["port"] in ports
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["shuffle"]}


def test_a_token_adds_the_metrics_of_applications():
    values = {"monitoring": {"podMonitor": {"tokenSecret": "status-token", "tokenKey": "t"}}}
    _, endpoint = render(values, *MONITORING).one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics/applications"
    assert endpoint["authorization"]["credentials"] == {"name": "status-token", "key": "t"}
    assert endpoint["relabelings"][0]["replacement"] == "sluice-applications"


def test_labels_select_the_objects():
    values = {
        "monitoring": {"labels": {"release": "p"}, "dashboards": {"labels": {"grafana": "yes"}}}
    }
    objects = render(values, *MONITORING)
    for kind in ("PodMonitor", "PrometheusRule"):
        assert objects.one(kind)["metadata"]["labels"]["release"] == "p"
    labels = objects.one("ConfigMap", "sluice-dashboards")["metadata"]["labels"]
    assert labels["grafana"] == "yes"
    assert labels["grafana_dashboard"] == "1"
    assert "release" not in labels
