"""`merge` and `patch` change every object of the chart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.branches import EVERY_OBJECT
from tests.charts.rig import (
    MONITORING,
    Rendered,
    Values,
    conform,
    needs_helm,
    nested,
    refusal,
    render,
    render_text,
)
from tools.docs.helm_chart import VALUES, objects

pytestmark = needs_helm

GENERATED: Values = {"mode": "StatefulSet", "tls": {"source": "generated"}}
NAMES = {
    "auth": ("Secret", "sluice-cluster-secret"),
    "tls": ("Secret", "sluice-tls"),
    "tls.authority": ("Secret", "sluice-ca"),
    "tls.certificate": ("Certificate", "sluice-tls"),
    "tls.clientCertificate": ("Certificate", "sluice-client-tls"),
    "networkPolicy": ("NetworkPolicy", "sluice"),
    "drain.clusterRole": ("ClusterRole", "shuffle-sluice-nodes"),
    "drain.clusterRoleBinding": ("ClusterRoleBinding", "shuffle-sluice-nodes"),
    "workload": ("StatefulSet", "sluice"),
    "podDisruptionBudget": ("PodDisruptionBudget", "sluice"),
    "autoscaling": ("HorizontalPodAutoscaler", "sluice"),
    "monitoring.podMonitor": ("PodMonitor", "sluice"),
    "monitoring.prometheusRule": ("PrometheusRule", "sluice"),
    "monitoring.dashboards": ("ConfigMap", "sluice-dashboards"),
    "serviceAccount": ("ServiceAccount", "sluice"),
    "service": ("Service", "sluice"),
    "configMap": ("ConfigMap", "sluice"),
}
"""Kind and name of the object of each value."""


def combined(first: Values, second: Values) -> Values:
    made = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = combined(made[key], value) if both else value
    return made


def base_of(key: str) -> Values:
    return GENERATED if key in ("tls", "tls.authority") else EVERY_OBJECT


def changed(key: str, **change: Any) -> tuple[dict[str, Any], Rendered]:
    """Return the object of a value after a change, and all other objects."""
    values = combined(base_of(key), nested(key, change))
    assert conform(render_text(values, *MONITORING)) == ""
    made = render(values, *MONITORING)
    own = made.one(*NAMES[key])
    return own, Rendered(each for each in made if each is not own)


def test_every_object_has_a_name_here():
    assert sorted(NAMES) == sorted(objects(VALUES.read_text(encoding="utf-8")))
    assert len(render(EVERY_OBJECT, *MONITORING)) == len(NAMES) - 2


@pytest.mark.parametrize("key", NAMES)
def test_merge_changes_an_object_and_no_other(key: str):
    before = render(base_of(key), *MONITORING)
    own, others = changed(
        key,
        merge={"metadata": {"labels": {"team": "a", "helm.sh/chart": "mine"}, "generation": 7}},
    )
    original = before.one(*NAMES[key])
    assert own["metadata"]["labels"]["team"] == "a"
    assert own["metadata"]["labels"]["helm.sh/chart"] == "mine"
    assert own["metadata"]["generation"] == 7
    assert original["metadata"]["labels"].keys() <= own["metadata"]["labels"].keys()
    assert not any("team" in each["metadata"]["labels"] for each in others)
    assert {(each["kind"], each["metadata"]["name"]) for each in others} == {
        (each["kind"], each["metadata"]["name"]) for each in before if each is not original
    }


@pytest.mark.parametrize("key", NAMES)
def test_patch_changes_an_object_and_no_other(key: str):
    own, others = changed(
        key,
        patch=[
            {"op": "test", "path": "/kind", "value": NAMES[key][0]},
            {"op": "add", "path": "/metadata/labels/example.com~1team", "value": "a"},
            {
                "op": "copy",
                "from": "/metadata/labels/example.com~1team",
                "path": "/metadata/labels/b",
            },
            {"op": "move", "from": "/metadata/labels/b", "path": "/metadata/labels/c"},
            {"op": "replace", "path": "/metadata/labels/helm.sh~1chart", "value": "mine"},
            {"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1version"},
        ],
    )
    labels = own["metadata"]["labels"]
    assert labels["example.com/team"] == labels["c"] == "a"
    assert labels["helm.sh/chart"] == "mine"
    assert "b" not in labels
    assert "app.kubernetes.io/version" not in labels
    for each in others:
        assert "app.kubernetes.io/version" in each["metadata"]["labels"]


def args_after(*operations: Values) -> list[str]:
    """Return the words of the container's command, which begin as ["taskmanager"]."""
    made = render({"workload": {"patch": list(operations)}})
    words: list[str] = made.container["args"]
    return words


ARGS = "/spec/template/spec/containers/0/args"


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": f"{ARGS}/-", "value": "z"}], ["taskmanager", "z"]),
        ([{"op": "add", "path": f"{ARGS}/0", "value": "a"}], ["a", "taskmanager"]),
        ([{"op": "add", "path": f"{ARGS}/1", "value": "b"}], ["taskmanager", "b"]),
        ([{"op": "replace", "path": f"{ARGS}/0", "value": "c"}], ["c"]),
        ([{"op": "replace", "path": ARGS, "value": ["d", "e"]}], ["d", "e"]),
        (
            [
                {"op": "add", "path": f"{ARGS}/-", "value": "x"},
                {"op": "add", "path": f"{ARGS}/1", "value": "y"},
                {"op": "remove", "path": f"{ARGS}/0"},
            ],
            ["y", "x"],
        ),
        ([{"op": "copy", "from": f"{ARGS}/0", "path": f"{ARGS}/-"}], ["taskmanager"] * 2),
        (
            [
                {"op": "add", "path": f"{ARGS}/-", "value": "last"},
                {"op": "move", "from": f"{ARGS}/1", "path": f"{ARGS}/0"},
            ],
            ["last", "taskmanager"],
        ),
    ],
)
def test_patch_changes_lists_as_rfc_6902_says(operations: list[Values], expected: list[str]):
    assert args_after(*operations) == expected


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, 1.5, {"a~b/c": [None]}])
def test_patch_adds_any_value(value: object):
    operation = {"op": "add", "path": "/spec/template/spec/containers/0/x", "value": value}
    assert render({"workload": {"patch": [operation]}}).container["x"] == value


def test_patch_follows_merge():
    made = render(
        {
            "service": {
                "merge": {"metadata": {"labels": {"a": "merged"}}},
                "patch": [{"op": "replace", "path": "/metadata/labels/a", "value": "patched"}],
            }
        }
    )
    assert made.one("Service")["metadata"]["labels"]["a"] == "patched"


def test_large_numbers_survive_a_patch():
    merge = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 1000650000}}}}}
    patch = [{"op": "remove", "path": "/metadata/labels/helm.sh~1chart"}]
    text = render_text({"workload": {"merge": merge, "patch": patch}})
    assert "runAsUser: 1000650000\n" in text


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/nothing"}, 'nothing is at "nothing"'),
        ({"op": "replace", "path": "/kindly", "value": 1}, 'nothing is at "kindly"'),
        ({"op": "add", "path": "/a/b", "value": 1}, 'nothing is at "a"'),
        ({"op": "add", "path": "/kind/b", "value": 1}, '"b" is inside neither a map nor a list'),
        ({"op": "add", "path": f"{ARGS}/2", "value": 1}, "the index 2 is outside a list of 1"),
        ({"op": "remove", "path": f"{ARGS}/1"}, "the index 1 is outside a list of 1"),
        ({"op": "remove", "path": f"{ARGS}/-"}, '"-" is not an index of a list'),
        ({"op": "remove", "path": f"{ARGS}/00"}, '"00" is not an index of a list'),
        ({"op": "add", "path": "/kind"}, "add needs a value"),
        ({"op": "test", "path": "/kind", "value": "Pod"}, 'the test failed: /kind is "DaemonSet"'),
        ({"op": "copy", "path": "/x"}, 'from is "": write a JSON pointer'),
        ({"op": "copy", "path": "/x", "from": "/y"}, 'nothing is at "y"'),
    ],
)
def test_a_wrong_operation_is_named(operation: Values, message: str):
    patch = [{"op": "test", "path": "/kind", "value": "DaemonSet"}, operation]
    assert f"workload.patch[1]: {message}" in refusal({"workload": {"patch": patch}})
