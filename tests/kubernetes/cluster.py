"""A Kubernetes cluster on this machine: a control plane and nodes, made for a test and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.compose.commands import run, wait_until
from tests.kubernetes.control_plane import control_plane
from tests.kubernetes.enforcer import enforced_policies
from tests.kubernetes.image_archive import write_image
from tests.kubernetes.image_store import image_store
from tests.kubernetes.images import BUILD, Image
from tests.kubernetes.leftovers import PREFIX, remove_leftovers
from tests.kubernetes.manifests import cluster_dns
from tests.kubernetes.network import cluster_network
from tests.kubernetes.node import PAUSE_IMAGE, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kubernetes.api import Api
    from tests.kubernetes.control_plane import ControlPlane
    from tests.kubernetes.enforcer import Enforcer

BINARIES = BUILD / "bin"
HELM = BUILD.parent / "charts" / "helm"
LOGS = BUILD / "logs"
NODES = ("node-1", "node-2")
DNS_IMAGE = "docker.io/library/sluice-coredns:1"
_READY_SECONDS = 120
_GONE_SECONDS = 120
_COMMAND_SECONDS = 120
_KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
)
"""Kernel settings that a kubelet changes for the whole machine."""
_OWN_NAMESPACES = {"default", "kube-node-lease", "kube-public", "kube-system"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        plane: Its control plane.
        nodes: Its nodes, by name.
        policies: Enforces network policies on them.
        network: Name of the network namespace of its control plane.
        directory: A directory that nodes and this process see at the same path.
    """

    plane: ControlPlane
    nodes: dict[str, Node]
    policies: Enforcer
    network: str
    directory: Path

    @property
    def api(self) -> Api:
        """Its API, with all rights."""
        return self.plane.api

    def kubectl(self, *arguments: str, timeout_seconds: float = _COMMAND_SECONDS) -> str:
        """Run ``kubectl`` with all rights."""
        return run(
            [BINARIES / "kubectl", f"--kubeconfig={self.plane.kubeconfig}", *arguments],
            timeout_seconds=timeout_seconds,
            environment={"HOME": str(self.directory), "PATH": os.environ["PATH"]},
        )

    def helm(self, *arguments: str, timeout_seconds: float = _COMMAND_SECONDS) -> str:
        """Run Helm with all rights; its own files are below the cluster's directory."""
        return run(
            [HELM, f"--kubeconfig={self.plane.kubeconfig}", *arguments],
            timeout_seconds=timeout_seconds,
            environment={"HOME": str(self.directory), "PATH": os.environ["PATH"]},
        )

    def create(self, *objects: dict[str, Any]) -> None:
        """Make objects, one after the other."""
        for each in objects:
            self.api.post(_collection(each), each)

    def check(self) -> None:
        """Raise if a process of the cluster has ended."""
        self.plane.check()
        for node in self.nodes.values():
            node.check()

    def pods(self, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Return the pods of a namespace that have these labels."""
        query = {"labelSelector": labels} if labels else {}
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods", **query)

    def delete_namespaces(self) -> None:
        """Delete all namespaces of tests with all that is in them, and wait until they are gone."""
        for each in self.api.items("/api/v1/namespaces"):
            name = each["metadata"]["name"]
            if name not in _OWN_NAMESPACES:
                self.delete_namespace(name)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace with all that is in it, and wait until it is gone."""
        path = f"/api/v1/namespaces/{name}"
        self.api.delete(path)

        def deleted() -> bool | str:
            if not self.api.exists(path):
                return True
            # Controllers may have made others since the last time.
            self.api.delete(f"{path}/pods", grace_seconds=0)
            return str([pod["metadata"]["name"] for pod in self.pods(name)])

        wait_until(f"namespace {name} is deleted", deleted, timeout_seconds=_GONE_SECONDS)


@contextmanager
def running_cluster(images: list[Image]) -> Iterator[Cluster]:
    """Make a cluster that has these images; at the end nothing of it is left.

    Raises:
        ComposeTestFailed: Something is missing on the machine, or did not start.
    """
    remove_leftovers()
    name = f"{PREFIX}{os.getpid()}"
    programs = {PAUSE_IMAGE: "pause", DNS_IMAGE: "coredns"}
    store = image_store([*(program_image(*each) for each in programs.items()), *images])
    with ExitStack() as undo:
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        (directory / "logs").mkdir()
        undo.callback(_keep_logs, directory / "logs")
        undo.enter_context(_kernel_settings())
        networks = undo.enter_context(cluster_network(name, len(NODES)))
        plane = undo.enter_context(control_plane(directory, BINARIES, list(NODES)))
        nodes = {
            node: Node(node, network, directory / node, f"{name}-{node}")
            for node, network in zip(NODES, networks, strict=True)
        }
        for node in nodes.values():
            undo.callback(node.stop)
            node.start(store, BINARIES, *plane.kubeconfig_of(node.name))
        policies = undo.enter_context(
            enforced_policies(plane.api, [each.name for each in networks])
        )
        cluster = Cluster(plane, nodes, policies, name, directory)
        undo.callback(cluster.delete_namespaces)
        cluster.create(*cluster_dns(DNS_IMAGE))
        wait_until("nodes are ready", lambda: _nodes_ready(cluster), timeout_seconds=_READY_SECONDS)
        cluster.kubectl(
            *("rollout", "status", "--namespace=kube-system", "deployment/coredns"),
            timeout_seconds=_READY_SECONDS,
        )
        yield cluster


def program_image(name: str, program: str) -> Image:
    """Return an image with one of the cluster's programs."""
    archive = BUILD / "images" / f"{program}.tar"
    if archive.is_file() and archive.stat().st_mtime > (BINARIES / program).stat().st_mtime:
        return Image(name, archive)
    write_image(archive, name, {program: BINARIES / program}, [f"/{program}"])
    return Image(name, archive)


def _nodes_ready(cluster: Cluster) -> bool | str:
    cluster.check()
    states = {
        node["metadata"]["name"]: condition["status"]
        for node in cluster.api.items("/api/v1/nodes")
        for condition in node["status"].get("conditions", ())
        if condition["type"] == "Ready"
    }
    return states == dict.fromkeys(NODES, "True") or str(states)


def _collection(body: dict[str, Any]) -> str:
    version, kind = body["apiVersion"], body["kind"].lower()
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = body["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{root}{inside}/{plural}"


def _keep_logs(logs: Path) -> None:
    shutil.rmtree(LOGS, ignore_errors=True)
    shutil.copytree(logs, LOGS)


@contextmanager
def _kernel_settings() -> Iterator[None]:
    """Restore the kernel settings that the block changes."""
    paths = [Path("/proc/sys") / name for name in _KERNEL_SETTINGS]
    before = {path: path.read_text() for path in paths}
    try:
        yield
    finally:
        for path, value in before.items():
            path.write_text(value)
