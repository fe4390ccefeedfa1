"""A control plane: etcd, API server, controllers and scheduler, each a process."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, wait_until
from tests.kubernetes.api import Api
from tests.kubernetes.network import CONTROL_ADDRESS, SERVICES
from tests.support.certificates import Authority
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PORT = 6443
URL = f"https://{CONTROL_ADDRESS}:{PORT}"
_ETCD = "http://127.0.0.1:2379"
_START_SECONDS = 120
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
_FIRST_SERVICE_ADDRESS = "198.19.64.1"
_CONTROLLERS = "system:kube-controller-manager"
_SCHEDULER = "system:kube-scheduler"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane.

    Attributes:
        api: Its API, with all rights.
        kubeconfig: The same as a file, for ``kubectl`` and Helm.
        authority: Certificate file of its authority.
        directory: Has the kubeconfig files of the nodes.
    """

    api: Api
    kubeconfig: Path
    authority: Path
    directory: Path
    _processes: tuple[ManagedProcess, ...]

    def kubeconfig_of(self, node: str) -> tuple[Path, Path]:
        """Return the files of a node's kubelet and of its kube-proxy."""
        return self.directory / f"{node}.json", self.directory / "proxy.json"

    def check(self) -> None:
        """Raise if one of its processes has ended.

        Raises:
            ComposeTestFailed: With the end of its output.
        """
        for process in self._processes:
            if not process.running:
                raise ComposeTestFailed(process.describe("has ended"))


@contextmanager
def control_plane(directory: Path, binaries: Path, nodes: list[str]) -> Iterator[ControlPlane]:
    """Run a control plane in the network of this thread.

    Args:
        directory: For its files.
        binaries: Directory of the programs.
        nodes: Names of the nodes that may register.
    """
    files = directory / "control-plane"
    authority = Authority(files)
    certificate, key = authority.issue(CONTROL_ADDRESS, _FIRST_SERVICE_ADDRESS, *_SERVICE_NAMES)
    _, signing_key = authority.issue("service-accounts")
    users = {
        "admin": ("admin", "system:masters"),
        "controllers": (_CONTROLLERS, ""),
        "scheduler": (_SCHEDULER, ""),
        "proxy": ("system:kube-proxy", ""),
        **{name: (f"system:node:{name}", "system:nodes") for name in nodes},
    }
    tokens = {name: secrets.token_hex() for name in users}
    lines = (f'{tokens[name]},{user},{user},"{group}"' for name, (user, group) in users.items())
    (files / "tokens.csv").write_text("\n".join(lines) + "\n")
    for name, token in tokens.items():
        (files / f"{name}.json").write_text(json.dumps(_kubeconfig(authority.ca_file, token)))
    commands = {
        "etcd": (
            *(
                str(binaries / "etcd"),
                f"--data-dir={files / 'etcd'}",
                f"--listen-client-urls={_ETCD}",
            ),
            *(f"--advertise-client-urls={_ETCD}", "--listen-peer-urls=http://127.0.0.1:2380"),
            *("--log-level=warn", "--logger=zap"),
        ),
        "kube-apiserver": (
            str(binaries / "kube-apiserver"),
            f"--etcd-servers={_ETCD}",
            *(f"--advertise-address={CONTROL_ADDRESS}", f"--secure-port={PORT}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            f"--token-auth-file={files / 'tokens.csv'}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-{use}key-file={signing_key}" for use in ("", "signing-")),
            *(f"--service-cluster-ip-range={SERVICES}", "--allow-privileged"),
            "--kubelet-preferred-address-types=InternalIP",
        ),
        "kube-controller-manager": (
            str(binaries / "kube-controller-manager"),
            *(f"--kubeconfig={files / 'controllers.json'}", "--leader-elect=false"),
            *(f"--root-ca-file={authority.ca_file}", "--secure-port=0"),
            f"--service-account-private-key-file={signing_key}",
            "--use-service-account-credentials",
        ),
        "kube-scheduler": (
            str(binaries / "kube-scheduler"),
            *(f"--kubeconfig={files / 'scheduler.json'}", "--leader-elect=false"),
            "--secure-port=0",
        ),
    }
    api = Api(CONTROL_ADDRESS, PORT, authority.ca_file, tokens["admin"])
    with ExitStack() as undo:
        processes = []
        for name, command in commands.items():
            process = ManagedProcess(
                name,
                # It ends with this process, even if a signal kills that.
                ("setpriv", "--pdeathsig", "KILL", *command),
                log_path=directory / "logs" / f"{name}.log",
                environment=os.environ,
                directory=directory,
            )
            processes.append(undo.enter_context(process))
        plane = ControlPlane(api, files / "admin.json", authority.ca_file, files, tuple(processes))

        def ready() -> bool | str:
            plane.check()
            return api.is_ready()

        wait_until("the API server is ready", ready, timeout_seconds=_START_SECONDS)
        yield plane


def _kubeconfig(authority: Path, token: str) -> dict[str, object]:
    name = "cluster"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": URL, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
