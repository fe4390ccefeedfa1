"""Network policies as rules of nftables."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.kubernetes.policies import UnsupportedPolicy, is_selected, ruleset

NAMESPACES = [
    {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
    for name in ("shuffle", "other")
]


def pod(name: str, address: str, namespace: str = "shuffle", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"containers": [{"ports": [{"name": "data", "containerPort": 7337}]}], **spec},
        "status": {"phase": "Running", "podIP": address},
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "policy", "namespace": "shuffle"}, "spec": spec}


def app(name: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"app": name}}}


def chains(text: str) -> dict[str, list[str]]:
    found = re.findall(r"chain (\w+) \{\n(.*?)\n  \}", text, re.DOTALL)
    return {name: [line.strip() for line in body.splitlines()] for name, body in found}


PODS = [
    pod("server", "10.0.0.1"),
    pod("client", "10.0.0.2"),
    pod("client", "10.0.1.2", "other"),
]


def test_without_policies_nothing_is_dropped():
    assert "drop" not in ruleset([], PODS, NAMESPACES)


def test_a_pod_that_is_not_selected_is_open():
    rules = chains(ruleset([policy(**app("server"), ingress=[])], PODS, NAMESPACES))
    assert set(rules) == {"ingress_10_0_0_1", "forward"}
    assert rules["ingress_10_0_0_1"] == ["counter drop"]
    assert rules["forward"][-1] == "ip daddr 10.0.0.1 jump ingress_10_0_0_1"


@pytest.mark.parametrize(
    ("peer", "addresses"),
    [
        (app("client"), "10.0.0.2"),
        ({"namespaceSelector": {}, **app("client")}, "10.0.0.2, 10.0.1.2"),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
         "10.0.1.2"),
        ({"podSelector": {}}, "10.0.0.1, 10.0.0.2"),
    ],
)  # fmt: skip
def test_peers_are_chosen_by_namespace_and_labels(peer: dict[str, Any], addresses: str):
    rule = {"from": [peer], "ports": [{"port": 7337, "protocol": "TCP"}]}
    rules = chains(ruleset([policy(**app("server"), ingress=[rule])], PODS, NAMESPACES))
    expected = f"ip saddr {{ {addresses} }} tcp dport 7337 return"
    assert rules["ingress_10_0_0_1"] == [expected, "counter drop"]


def test_peers_that_do_not_exist_allow_nothing():
    rules = chains(
        ruleset([policy(**app("server"), ingress=[{"from": [app("no")]}])], PODS, NAMESPACES)
    )
    assert rules["ingress_10_0_0_1"] == ["counter drop"]


def test_a_rule_without_peers_allows_all_peers():
    rules = chains(
        ruleset(
            [policy(**app("server"), ingress=[{"ports": [{"port": "data"}]}])], PODS, NAMESPACES
        )
    )
    assert rules["ingress_10_0_0_1"] == ["tcp dport 7337 return", "counter drop"]


def test_blocks_have_exceptions_and_ports_have_ranges():
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}}
    rule = {"to": [block], "ports": [{"port": 1, "endPort": 9, "protocol": "UDP"}]}
    egress = policy(**app("server"), policyTypes=["Egress"], egress=[rule])
    rules = chains(ruleset([egress], PODS, NAMESPACES))
    expected = "ip daddr 10.0.0.0/8 ip daddr != { 10.9.0.0/16 } udp dport 1-9 return"
    assert rules["egress_10_0_0_1"] == [expected, "counter drop"]


def test_a_pod_in_the_network_of_its_node_has_no_rules():
    rules = chains(
        ruleset([policy(podSelector={})], [pod("a", "10.0.0.9", hostNetwork=True)], NAMESPACES)
    )
    assert set(rules) == {"forward"}


def test_a_named_port_of_an_egress_rule_is_refused():
    egress = policy(podSelector={}, policyTypes=["Egress"], egress=[{"ports": [{"port": "data"}]}])
    with pytest.raises(UnsupportedPolicy):
        ruleset([egress], PODS, NAMESPACES)


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["a", "b"], True),
        ("NotIn", ["a"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_expressions_select(operator: str, values: list[str] | None, expected: bool):
    selector = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}
    assert is_selected(selector, {"k": "a"}) == expected
    assert is_selected(selector, {}) == (operator in {"NotIn", "DoesNotExist"})


def test_nft_reads_the_rules():
    if shutil.which("nft") is None:
        pytest.skip("nft is not installed")
    rule = {"from": [app("client")], "ports": [{"port": "data"}]}
    text = ruleset([policy(podSelector={}, ingress=[rule])], PODS, NAMESPACES)
    done = subprocess.run(
        ["nft", "--check", "--file", "-"], input=text, text=True, capture_output=True, check=False
    )
    if "permitted" in done.stderr:
        pytest.skip("nft needs root")
    assert done.returncode == 0, done.stderr
