"""Enforces network policies on the nodes of a cluster, as a network plugin would."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run
from tests.kubernetes.policies import TABLE, UnsupportedPolicy, ruleset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kubernetes.api import Api

_INTERVAL_SECONDS = 0.5
_LOAD_SECONDS = 20
_END_SECONDS = 60


class Enforcer:
    """Loads the rules of all policies into the namespaces of nodes, again after each change."""

    def __init__(self, api: Api, namespaces: Sequence[str]) -> None:
        self._api = api
        self._namespaces = namespaces
        self._loaded = ""
        self._changed = threading.Condition()
        self._passes = 0
        self._ended = threading.Event()
        self._problem = ""

    def wait(self) -> None:
        """Return when all current policies are enforced.

        Raises:
            ComposeTestFailed: It is not, with the reason.
        """
        with self._changed:
            # The running pass may have read older policies.
            target = self._passes + 2
            if not self._changed.wait_for(lambda: self._passes >= target, _END_SECONDS):
                raise ComposeTestFailed("network policies were not enforced in time")
            if self._problem:
                raise ComposeTestFailed(f"network policies are not enforced: {self._problem}")

    def dropped(self) -> int:
        """Return how many packets were dropped since the rules were loaded."""
        total = 0
        for namespace in self._namespaces:
            words = _nft(namespace, "list", "table", "ip", TABLE).split()
            total += sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")
        return total

    def run(self) -> None:
        """Enforce until the end."""
        while not self._ended.wait(_INTERVAL_SECONDS):
            try:
                self._load()
                problem = ""
            except (ComposeTestFailed, UnsupportedPolicy) as error:
                problem = str(error)
            with self._changed:
                self._problem = problem
                self._passes += 1
                self._changed.notify_all()

    def end(self) -> None:
        """Make ``run`` return."""
        self._ended.set()

    def _load(self) -> None:
        policies = self._api.items("/apis/networking.k8s.io/v1/networkpolicies")
        if not policies and not self._loaded:
            return
        pods, namespaces = (self._api.items(f"/api/v1/{kind}") for kind in ("pods", "namespaces"))
        rules = ruleset(policies, pods, namespaces)
        if rules == self._loaded:
            return
        for namespace in self._namespaces:
            _nft(namespace, rules)
        self._loaded = rules


@contextmanager
def enforced_policies(api: Api, namespaces: Sequence[str]) -> Iterator[Enforcer]:
    """Enforce network policies in these network namespaces while the block runs."""
    enforcer = Enforcer(api, namespaces)
    thread = threading.Thread(target=enforcer.run, name="network policies", daemon=True)
    thread.start()
    try:
        yield enforcer
    finally:
        enforcer.end()
        thread.join(_END_SECONDS)


def _nft(namespace: str, *words: str) -> str:
    return run(["ip", "netns", "exec", namespace, "nft", *words], timeout_seconds=_LOAD_SECONDS)
