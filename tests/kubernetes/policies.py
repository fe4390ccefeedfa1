"""NetworkPolicy objects as rules of nftables, for the nodes that forward the pods' packets.

A pod that no policy selects is open. For the others there is a chain with what policies allow,
which ends in a drop. What a node sends to its own pods, such as probes, is not forwarded, so it is
always allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Object: TypeAlias = Mapping[str, Any]

TABLE = "sluice_policies"
_ENDED = {"Succeeded", "Failed"}
_PEERS = {"Ingress": "from", "Egress": "to"}


class UnsupportedPolicy(ValueError):
    """A policy uses something that cannot be translated."""


def ruleset(
    policies: Sequence[Object], pods: Sequence[Object], namespaces: Sequence[Object]
) -> str:
    """Return a table of nftables that replaces the one that was loaded before.

    Raises:
        UnsupportedPolicy: A policy cannot be translated.
    """
    labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in namespaces}
    known = [pod for pod in pods if _address(pod)]
    jumps: list[str] = []
    chains: list[str] = []
    for pod in known:
        for direction in ("Egress", "Ingress"):
            selecting = [each for each in policies if _selects(each, pod, direction)]
            if not selecting:
                continue
            end = "saddr" if direction == "Egress" else "daddr"
            chain = f"{direction.lower()}_{_address(pod).replace('.', '_')}"
            jumps.append(f"ip {end} {_address(pod)} jump {chain}")
            rules = (
                f"{match} return".strip()
                for policy in selecting
                for rule in policy["spec"].get(direction.lower()) or ()
                for match in _matches(rule, policy, pod, direction, (known, labels))
            )
            lines = [*dict.fromkeys(rules), "counter drop"]
            chains.append(f"  chain {chain} {{\n    " + "\n    ".join(lines) + "\n  }\n")
    forward = ["type filter hook forward priority filter;", "ct state established,related accept"]
    return (
        f"add table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n"
        f"{''.join(chains)}  chain forward {{\n    " + "\n    ".join(forward + jumps) + "\n  }\n}\n"
    )


def is_selected(selector: Object, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector; an empty one matches all.

    Raises:
        UnsupportedPolicy: The selector has an unknown operator.
    """
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            raise UnsupportedPolicy(f"operator {operator} of a selector")


def _address(pod: Object) -> str:
    """Return the address of a pod that has one of its own, or nothing."""
    if pod["spec"].get("hostNetwork") or pod["status"].get("phase") in _ENDED:
        return ""
    return str(pod["status"].get("podIP", ""))


def _selects(policy: Object, pod: Object, direction: str) -> bool:
    if policy["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    if direction not in types:
        return False
    return is_selected(spec.get("podSelector") or {}, pod["metadata"].get("labels", {}))


def _matches(
    rule: Object,
    policy: Object,
    pod: Object,
    direction: str,
    world: tuple[Sequence[Object], Mapping[str, Mapping[str, str]]],
) -> list[str]:
    """Return the conditions that a rule of a policy allows, for one of its pods."""
    peers = rule.get(_PEERS[direction])
    end = "saddr" if direction == "Ingress" else "daddr"
    ports = _ports(rule.get("ports"), pod if direction == "Ingress" else None)
    if not peers:
        return ports
    addresses: list[str] = []
    matches: list[str] = []
    for peer in peers:
        block = peer.get("ipBlock")
        if block:
            excluded = block.get("except") or ()
            outside = f" ip {end} != {{ {', '.join(excluded)} }}" if excluded else ""
            matches += [f"ip {end} {block['cidr']}{outside} {port}" for port in ports]
        else:
            addresses += _addresses(peer, policy["metadata"]["namespace"], *world)
    if addresses:
        joined = ", ".join(sorted(set(addresses)))
        matches += [f"ip {end} {{ {joined} }} {port}" for port in ports]
    return matches


def _addresses(
    peer: Object,
    namespace: str,
    pods: Sequence[Object],
    labels: Mapping[str, Mapping[str, str]],
) -> list[str]:
    selector = peer.get("namespaceSelector")
    return [
        _address(pod)
        for pod in pods
        for place in (pod["metadata"]["namespace"],)
        if (
            place == namespace if selector is None else is_selected(selector, labels.get(place, {}))
        )
        and is_selected(peer.get("podSelector") or {}, pod["metadata"].get("labels", {}))
    ]


def _ports(ports: Sequence[Object] | None, target: Object | None) -> list[str]:
    """Return a condition for each port; without ports one that is always true."""
    if not ports:
        return [""]
    matches = []
    for each in ports:
        protocol, port = each.get("protocol", "TCP").lower(), each.get("port")
        if isinstance(port, str):
            port = _named(port, target)
            if port is None:
                continue
        if port is None:
            matches.append(f"meta l4proto {protocol}")
        else:
            last = f"-{each['endPort']}" if "endPort" in each else ""
            matches.append(f"{protocol} dport {port}{last}")
    return matches


def _named(name: str, target: Object | None) -> int | None:
    if target is None:
        raise UnsupportedPolicy(f"port {name!r} of an egress rule: only numbers are translated")
    for container in target["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None
