"""Programs that the machine must have for a cluster."""

from __future__ import annotations

import os
import shutil

from tests.compose.commands import ComposeTestFailed, run
from tests.kubernetes.cluster import BINARIES, HELM

_INSTALL_SECONDS = 300
_PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "findmnt": "util-linux",
}
"""Programs of nodes and control plane, and the Debian packages that bring them."""
_BUILT = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"),
    *("kubectl", "etcd", "coredns", "pause"),
)


def install_packages() -> None:
    """Install what is missing.

    Raises:
        ComposeTestFailed: Something cannot be installed; the text says what to do.
    """
    if os.geteuid() != 0:
        raise ComposeTestFailed("a cluster needs root: run `make kubernetes-test` as root")
    built = [*(BINARIES / name for name in _BUILT), HELM]
    missing = [str(path) for path in built if not path.is_file()]
    if missing:
        raise ComposeTestFailed(
            f"{', '.join(missing)} are not there: `make kubernetes-test` builds them"
        )
    packages = sorted({package for name, package in _PROGRAMS.items() if not shutil.which(name)})
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise ComposeTestFailed(f"{', '.join(packages)} must be installed, without apt-get by hand")
    print(f"installing {' '.join(packages)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], timeout_seconds=_INSTALL_SECONDS, environment=quiet)
    run(
        ["apt-get", "install", "-y", "--no-install-recommends", *packages],
        timeout_seconds=_INSTALL_SECONDS,
        environment=quiet,
    )
