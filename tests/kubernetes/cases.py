"""The cases: functions whose docstring is the claim; each returns a text with its counts.

A case raises ``ComposeTestFailed`` if its claim does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tests.compose.commands import ComposeTestFailed, wait_until
from tests.kubernetes.cluster import NODES
from tests.kubernetes.spark import DEMO, HELD, REACHED, SHARED, SLUICE_MANAGER, STRANGERS, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.kubernetes.event_log import TaskCounts
    from tests.kubernetes.images import OlderRelease
    from tests.kubernetes.installation import Installation
    from tests.kubernetes.spark import SparkJob

MAPS = 8
REDUCES = 8
_SLOTS = 2
"""Tasks that run at a time."""
_ANY_TASKMANAGER = {
    # Executors that do not know their node each choose among all TaskManagers. With so many
    # executors it is very unlikely that none chooses the added one.
    "spark.kubernetes.executor.podTemplateFile": "",
    "spark.executor.instances": "8",
}
_REMOVED_SECONDS = 60
_DRAIN_SECONDS = 300
_DRAINED = NODES[1]
_KEPT = {"secret", "persistentvolumeclaim"}
"""Kinds that an uninstalled release leaves: the cluster secret, and volumes with data."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a case uses.

    Attributes:
        installation: Of the chart; installed, except for the cases of ``UNINSTALLED``.
        older: What `upgraded` begins with; None if it is not asked for.
    """

    installation: Installation
    older: OlderRelease | None


Case: TypeAlias = "Callable[[Setting], str]"


def installed(setting: Setting) -> str:
    """The chart installs; a TaskManager is ready on each node."""
    installation = setting.installation
    installation.install()
    nodes = sorted(str(pod["spec"]["nodeName"]) for pod in installation.pods())
    if nodes != sorted(NODES):
        raise ComposeTestFailed(f"TaskManagers are on {nodes}")
    return f"{len(nodes)} TaskManagers on {len(set(nodes))} nodes"


def same_result(setting: Setting) -> str:
    """An application in cluster mode has the same result as with Spark's own shuffle."""
    spark = setting.installation.spark
    ours, counts = spark.submit("demo", DEMO).finish()
    if ours.get("shuffle") != SLUICE_MANAGER:
        raise ComposeTestFailed(f"the application used {ours}, expected {SLUICE_MANAGER}")
    # Without the plugin its settings have no effect.
    own_settings = dict.fromkeys(spark.settings, "")
    own, _ = spark.submit("own", DEMO, settings=own_settings).finish()
    if own.get("shuffle") != "sort":
        raise ComposeTestFailed(f"the application to compare with used {own}, expected sort")
    if ours["digest"] != own["digest"]:
        raise ComposeTestFailed(f"results differ: Sluice {ours}, Spark's own shuffle {own}")
    return f"equal; {counts}"


def killed_in_map_stage(setting: Setting) -> str:
    """No map task runs again when a TaskManager is killed in the map stage."""
    job = _held(setting, "map-kill", hold_map=MAPS // 2)
    job.wait_for_arrivals("map", _SLOTS)
    return _lose(setting, job, "map", setting.installation.kill)


def killed_in_reduce_stage(setting: Setting) -> str:
    """No map task runs again when a TaskManager is killed in the reduce stage."""
    job = _held(setting, "reduce-kill", hold_reduce=REDUCES // 2)
    job.wait_for_arrivals("reduce", _SLOTS)
    return _lose(setting, job, "reduce", setting.installation.kill)


def deleted_in_map_stage(setting: Setting) -> str:
    """No map task runs again when a pod is deleted without grace in the map stage."""
    job = _held(setting, "map-delete", hold_map=MAPS // 2)
    job.wait_for_arrivals("map", _SLOTS)
    return _lose(setting, job, "map", setting.installation.delete)


def deleted_in_reduce_stage(setting: Setting) -> str:
    """No map task runs again when a pod is deleted without grace in the reduce stage."""
    job = _held(setting, "reduce-delete", hold_reduce=REDUCES // 2)
    job.wait_for_arrivals("reduce", _SLOTS)
    return _lose(setting, job, "reduce", setting.installation.delete)


def drained_node(setting: Setting) -> str:
    """No map task runs again when ``kubectl drain`` evicts a node under an application."""
    installation = setting.installation
    job = _held(setting, "drain", hold_reduce=REDUCES // 2)
    job.wait_for_arrivals("reduce", _SLOTS)
    held = installation.committed(job.application)[installation.pod_on(_DRAINED)]
    if not held:
        raise ComposeTestFailed(f"the TaskManager on {_DRAINED} has no map outputs")
    cluster = installation.cluster
    try:
        cluster.kubectl(
            *("drain", _DRAINED, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            f"--timeout={_DRAIN_SECONDS}s",
            timeout_seconds=_DRAIN_SECONDS + 30,
        )
        job.release("reduce")
        counts = _right(job)
    finally:
        cluster.kubectl("uncordon", _DRAINED)
    installation.wait_ready()
    what = "moved" if installation.mode == "StatefulSet" else "stayed"
    return f"{held} map outputs {what}; {_none_again(counts)}"


def rolling_update(setting: Setting) -> str:
    """No map task runs again when all TaskManagers are replaced one by one."""
    installation = setting.installation
    before = _identities(installation)
    job = _held(setting, "rolling", hold_reduce=REDUCES // 2)
    job.wait_for_arrivals("reduce", _SLOTS)
    held = sum(installation.committed(job.application).values())
    installation.upgrade(podAnnotations={"rolled": "once"})
    after = _identities(installation)
    if before & after or len(after) != len(before):
        raise ComposeTestFailed(f"not all pods were replaced: {before}, then {after}")
    job.release("reduce")
    counts = _right(job)
    return f"{len(after)} pods replaced, {held} map outputs; {_none_again(counts)}"


def scaled(setting: Setting) -> str:
    """A new TaskManager gets map outputs; when it leaves, others serve them."""
    installation = setting.installation
    installation.upgrade(replicas=len(NODES) + 1)
    installation.wait_ready(len(NODES) + 1)
    added = str(installation.pods()[-1]["metadata"]["name"])
    job = _held(setting, "scaled", hold_reduce=REDUCES // 2, settings=_ANY_TASKMANAGER)
    job.wait_for_arrivals("reduce", _SLOTS)
    held = installation.committed(job.application)
    if not held.get(added):
        raise ComposeTestFailed(f"{added} got no map outputs: {held}")
    installation.upgrade(replicas=len(NODES))
    wait_until(
        f"{added} is gone",
        lambda: len(installation.pods()) == len(NODES) or str(len(installation.pods())),
        timeout_seconds=_DRAIN_SECONDS,
    )
    left = sum(installation.committed(job.application).values())
    if left != sum(held.values()):
        raise ComposeTestFailed(f"{held} before, {left} map outputs after {added} left")
    job.release("reduce")
    counts = _right(job)
    return f"{held[added]} of {left} map outputs moved; {_none_again(counts)}"


def upgraded(setting: Setting) -> str:
    """No map task runs again when ``helm upgrade`` replaces an older chart and image."""
    installation, older = setting.installation, setting.older
    if older is None:
        raise ComposeTestFailed("there is no older release")
    current = installation.image_values(installation.image)
    installation.upgrade(chart=older.chart, image=installation.image_values(older.image))
    job = _held(setting, "upgraded", hold_reduce=REDUCES // 2)
    job.wait_for_arrivals("reduce", _SLOTS)
    held = sum(installation.committed(job.application).values())
    installation.upgrade(image=current)
    job.release("reduce")
    counts = _right(job)
    what = "chart and image" if older.chart else "image, with the same chart,"
    return f"{what} of {older.commit}; {held} map outputs; {_none_again(counts)}"


def isolated(setting: Setting) -> str:
    """Spark's pods reach the data port; a pod of another namespace does not."""
    installation = setting.installation
    policies = installation.cluster.policies
    policies.wait()
    address = str(installation.pods()[0]["status"]["podIP"])
    spark = installation.spark
    inside = spark.probe("client", spark.namespace, address, {"spark-role": "executor"})
    if inside != REACHED:
        raise ComposeTestFailed(f"a pod of Spark did not reach {address}: {inside}")
    before = policies.dropped()
    outside = spark.probe("stranger", STRANGERS, address, {"spark-role": "executor"})
    if outside != TIMED_OUT:
        raise ComposeTestFailed(f"a pod of another namespace and {address}: {outside}")
    return f"{policies.dropped() - before} packets dropped by rules of the rig"


def uninstalled(setting: Setting) -> str:
    """``helm uninstall`` only leaves the objects that the chart keeps."""
    installation = setting.installation
    before = installation.leftovers()
    installation.uninstall()

    def removed() -> bool | str:
        left = [name for name in installation.leftovers() if name.split("/")[0] not in _KEPT]
        return not left or f"left: {', '.join(left)}"

    wait_until("objects are removed", removed, timeout_seconds=_REMOVED_SECONDS)
    kept = ", ".join(installation.leftovers()) or "nothing"
    return f"{len(before)} objects before; kept: {kept}"


def _held(
    setting: Setting,
    name: str,
    *,
    hold_map: int | None = None,
    hold_reduce: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkJob:
    options = {"--hold-map": hold_map, "--hold-reduce": hold_reduce}
    words = [word for key, value in options.items() if value is not None for word in (key, value)]
    return setting.installation.spark.submit(
        *(name, HELD, "--shared", SHARED, "--maps", str(MAPS), "--reduces", str(REDUCES)),
        *map(str, words),
        settings=settings,
    )


def _lose(setting: Setting, job: SparkJob, point: str, lose: Callable[[str], None]) -> str:
    """Lose a TaskManager that has map outputs while tasks wait at a point."""
    installation = setting.installation
    held = installation.committed(job.application)
    victim = max(held, key=lambda name: held[name])
    if not held[victim]:
        raise ComposeTestFailed(f"no TaskManager has map outputs: {held}")
    lose(victim)
    job.release(point)
    counts = _right(job)
    installation.wait_ready()
    return f"{held[victim]} map outputs on it; {_none_again(counts)}"


def _right(job: SparkJob) -> TaskCounts:
    outcome, counts = job.finish()
    if outcome.get("right") != "True":
        raise ComposeTestFailed(f"wrong result: {outcome}; {counts}")
    return counts


def _none_again(counts: TaskCounts) -> TaskCounts:
    if counts.reruns or counts.fetch_failures:
        raise ComposeTestFailed(f"{counts}")
    return counts


def _identities(installation: Installation) -> set[str]:
    return {str(pod["metadata"]["uid"]) for pod in installation.pods()}
