"""Values that cannot work are refused, each with the value and the remedy."""

from __future__ import annotations

import pytest

from tests.charts.rig import CHART, KUBERNETES, Values, helm, needs_helm, nested, refusal, template

pytestmark = needs_helm

BAD: list[tuple[Values, str]] = [
    ({"mod": "DaemonSet"}, "additional properties 'mod' not allowed"),
    ({"storage": {"sise": "1Gi"}}, "at '/storage': additional properties 'sise' not allowed"),
    ({"config": {"storge": {}}}, "at '/config': additional properties 'storge' not allowed"),
    (
        {"config": {"storage": {"data_port": 1}}},
        "at '/config/storage': additional properties 'data_port' not allowed",
    ),
    ({"config": {"storage": 1}}, "at '/config/storage': got number, want object"),
    ({"mode": "Deployment"}, "at '/mode': value must be one of 'DaemonSet', 'StatefulSet'"),
    ({"memory": "2 GB"}, "at '/memory': '2 GB' does not match pattern"),
    ({"memory": "100Mi"}, "memory = 100Mi: 1 data processes need at least 512Mi: raise memory"),
    (
        {"processes": 8},
        "memory = 2Gi: 8 data processes need at least 4096Mi: raise memory",
    ),
    ({"processes": 0}, "at '/processes': minimum: got 0, want 1"),
    ({"replicas": -1}, "at '/replicas': minimum: got -1, want 0"),
    ({"ports": {"data": 70000}}, "at '/ports/data': maximum: got 70,000, want 65,535"),
    ({"storage": {"hostPaths": ["ssd"]}}, "at '/storage/hostPaths/0': 'ssd' does not match"),
    ({"storage": {"hostPaths": []}}, "at '/storage/hostPaths': minItems: got 0, want 1"),
    ({"image": {"pullPolicy": "Often"}}, "at '/image/pullPolicy': value must be one of"),
    ({"drain": {"migrate": "maybe"}}, "at '/drain/migrate': value must be one of"),
    (
        {"mode": "StatefulSet", "drain": {"bytesPerSecond": "0.1"}},
        "drain.bytesPerSecond = 0: write a rate such as 100Mi",
    ),
    ({"tls": {"source": "vault"}}, "at '/tls/source': value must be one of"),
    ({"tls": {"source": "secret"}}, "tls.secretName: name the Secret with tls.crt, tls.key"),
    ({"tls": {"source": "certManager"}}, "tls.issuer.name: name the issuer of cert-manager"),
    ({"tls": {"checkHostName": "yes"}}, "at '/tls/checkHostName': value must be one of"),
    ({"autoscaling": {"enabled": True}}, "only a StatefulSet can be scaled: set mode=StatefulSet"),
    (
        {"mode": "StatefulSet", "autoscaling": {"enabled": True, "maxReplicas": 1}},
        "autoscaling.minReplicas = 2 is above maxReplicas = 1",
    ),
    ({"autoscaling": {"usedPercent": 101}}, "at '/autoscaling/usedPercent': maximum: got 101"),
    ({"networkPolicy": {"enabled": True}}, "set hostNetwork=false, or use a firewall"),
    (
        {"podSecurityContext": {"runAsUser": None}},
        "hostPaths.prepare: set podSecurityContext.runAsUser and runAsGroup",
    ),
    ({"monitoring": {"podMonitor": {"create": True}}}, "at '/monitoring/podMonitor/create'"),
    ({"service": {"patch": [{"op": "ad", "path": "/a"}]}}, "at '/service/patch/0/op'"),
    ({"service": {"patch": [{"op": "add"}]}}, "missing property 'path'"),
    ({"service": {"patch": [{"op": "add", "path": "a"}]}}, "'a' does not match pattern '^/'"),
    ({"service": {"merge": []}}, "at '/service/merge': got array, want object"),
    ({"extraObjects": [1]}, "at '/extraObjects/0': got number, want string or object"),
    ({"commonLabels": {"a": 1}}, "at '/commonLabels/a': got number, want string"),
    ({"podDisruptionBudget": {"maxUnavailable": "some"}}, "does not match pattern"),
    ({"config": {"traces": {"traces_endpoint": {"a": 1}}}}, "got object, want"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_value_is_refused(values: Values, message: str):
    assert message in refusal(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (nested("config.log_level", {"a": 1}), "got object, want"),
        (nested("config.quotas.quota_channels", [{"a": 1}]), "map"),
    ],
)
def test_a_setting_without_a_toml_form_is_refused(values: Values, message: str):
    assert message in refusal(values)


def test_an_old_kubernetes_is_refused():
    done = helm(["template", "sluice", str(CHART), "--kube-version", "1.28.0"], {})
    assert "chart requires kubeVersion: >=1.29.0-0" in done.stderr
    assert done.returncode != 0
    assert template({}, "--kube-version", KUBERNETES).returncode == 0


def test_a_chart_that_contains_this_one_may_pass_global_values():
    assert template({"global": {"any": "thing"}}).returncode == 0
