"""A node of a cluster: containerd, a kubelet and kube-proxy in namespaces of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run, wait_until
from tests.kubernetes.image_store import copy_store
from tests.kubernetes.images import BUILD
from tests.kubernetes.network import DNS_ADDRESS, PODS
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from tests.kubernetes.network import NodeNetwork

PAUSE_IMAGE = "docker.io/library/sluice-pause:1"
_SCRIPT = Path(__file__).resolve().parent / "node.sh"
CGROUPS = Path("/sys/fs/cgroup")
_START_SECONDS = 60
_NETWORK_PLUGINS = "/usr/lib/cni"

_CONTAINERD = """
version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{directory}/cni"
"""


class Node:
    """A node of the cluster.

    Its processes are in a process namespace, so they all end with the first one, and its mounts
    with them. The machine's directories below ``/var/lib``, ``/var/log``, ``/run`` and ``/dev/shm``
    are hidden by its own ones.

    Args:
        name: Name of the node.
        network: Network of the node.
        directory: For its files; the path must be short, because it has sockets.
        group: Name of its control groups; unique on the machine.
    """

    def __init__(self, name: str, network: NodeNetwork, directory: Path, group: str) -> None:
        self.name = name
        self.network = network
        self._directory = directory
        self._group = group
        # Next to the store, because its files are hard links into it.
        self._images = BUILD / "nodes" / group
        self._processes: list[ManagedProcess] = []
        self._enter: list[str] = []
        self._first = 0

    def start(self, store: Path, binaries: Path, kubelet_config: Path, proxy_config: Path) -> None:
        """Start containerd, kubelet and kube-proxy; return when the container runtime answers.

        Args:
            store: Image store of which containerd gets a copy.
            binaries: Directory of the programs.
            kubelet_config: With the address and credentials of the API server.
            proxy_config: The same for kube-proxy.
        """
        self._directory.mkdir(parents=True)
        self._images.parent.mkdir(parents=True, exist_ok=True)
        copy_store(store, self._images)
        for controller in CGROUPS.iterdir():
            if (controller / "cgroup.procs").is_file():
                _make_cgroup(controller / self._group)
        self._write_files()
        holder = self._spawn(
            "namespaces",
            *("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.network.name}"),
            *("bash", str(_SCRIPT), str(self._directory), self._group),
        )
        holder.wait_for_line(re.compile("the node is there"), _START_SECONDS)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        self._first = int(children[0])
        self._enter = [
            "nsenter",
            f"--target={self._first}",
            "--mount",
            "--net",
            "--pid",
            "--cgroup",
        ]
        config = str(self._directory / "containerd.toml")
        self._spawn("containerd", *self._enter, "containerd", "--config", config)
        wait_until(
            f"containerd of {self.name} answers",
            lambda: self.containerd("version", check=False).count("Version:") == 2 or "no answer",
            timeout_seconds=_START_SECONDS,
        )
        self._spawn(
            "kubelet",
            *self._enter,
            str(binaries / "kubelet"),
            f"--config={self._directory / 'kubelet.json'}",
            f"--kubeconfig={kubelet_config}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.address}",
            f"--cert-dir={self._directory / 'pki'}",
        )
        proxy = self._directory / "proxy.json"
        proxy.write_text(json.dumps(_proxy(self.name, self.network.address, proxy_config)))
        self._spawn("kube-proxy", *self._enter, str(binaries / "kube-proxy"), f"--config={proxy}")

    def run(self, *command: str, timeout_seconds: float = 60, check: bool = True) -> str:
        """Run a program on the node."""
        return run([*self._enter, *command], timeout_seconds=timeout_seconds, check=check)

    def containerd(self, *arguments: str, timeout_seconds: float = 60, check: bool = True) -> str:
        """Run containerd's command."""
        command = ("ctr", "--address=/run/containerd/containerd.sock", "--namespace=k8s.io")
        return self.run(*command, *arguments, timeout_seconds=timeout_seconds, check=check)

    def stop(self) -> None:
        """End all processes of the node; remove its files and control groups."""
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
        for process in reversed(self._processes):
            process.stop()
        self._processes.clear()
        for group in CGROUPS.glob(f"*/{self._group}"):
            remove_cgroup(group)
        for directory in (self._directory, self._images):
            shutil.rmtree(directory, ignore_errors=True)

    def check(self) -> None:
        """Raise if one of its processes has ended.

        Raises:
            ComposeTestFailed: A process has ended; the text has the end of its output.
        """
        for process in self._processes:
            if not process.running:
                raise ComposeTestFailed(process.describe(f"of {self.name} has ended"))

    def _spawn(self, what: str, *command: str) -> ManagedProcess:
        process = ManagedProcess(
            f"{what} of {self.name}",
            command,
            log_path=self._directory.parent / "logs" / f"{self.name}-{what}.log",
            environment=os.environ,
            directory=Path("/"),
        )
        self._processes.append(process)
        return process

    def _write_files(self) -> None:
        directory = self._directory
        (directory / "containerd.toml").write_text(
            _CONTAINERD.format(
                root=self._images, directory=directory, pause=PAUSE_IMAGE, plugins=_NETWORK_PLUGINS
            )
        )
        (directory / "cni").mkdir()
        (directory / "cni" / "pods.conflist").write_text(json.dumps(_pod_network(self.network)))
        # Names outside the cluster are unknown.
        (directory / "resolv.conf").write_text("")
        (directory / "kubelet.json").write_text(json.dumps(_kubelet(directory)))


def _kubelet(directory: Path) -> dict[str, object]:
    never = dict.fromkeys(
        (
            *("memory.available", "nodefs.available", "nodefs.inodesFree"),
            *("imagefs.available", "imagefs.inodesFree"),
        ),
        "0%",
    )
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        # Only processes in the cluster's own network reach its port.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(directory / "resolv.conf"),
        "evictionHard": never,
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
    }


def _proxy(name: str, address: str, kubeconfig: Path) -> dict[str, object]:
    # Limits of connection tracking apply to the whole machine.
    unchanged = {"maxPerCore": 0, "min": 0}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "nftables",
        "hostnameOverride": name,
        "bindAddress": address,
        "clusterCIDR": PODS,
        "conntrack": unchanged,
    }


def _pod_network(network: NodeNetwork) -> dict[str, object]:
    """Return the configuration of pods' interfaces.

    Each pod has a link of its own to the node, so all its traffic is forwarded by the node, where
    network policies are enforced.
    """
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def _make_cgroup(group: Path) -> None:
    group.mkdir()
    if "cpuset" in group.parent.name.split(","):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (group / name).write_text((group.parent / name).read_text())


def remove_cgroup(group: Path) -> None:
    """Remove a control group and those in it; processes in them may still be ending."""
    for folder, _, _ in os.walk(group, topdown=False):

        def removed(folder: str = folder) -> bool | str:
            try:
                Path(folder).rmdir()
            except OSError as error:
                return str(error)
            return True

        wait_until(f"{folder} is removed", removed, timeout_seconds=_START_SECONDS)
