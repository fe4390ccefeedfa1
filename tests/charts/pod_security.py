"""The rules of the Pod Security Standard `restricted`, as published for Kubernetes 1.34.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ has them as tables; each check
here is a row of it, for pods on Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
PROFILES: Final = ("RuntimeDefault", "Localhost")
SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
SELINUX_TYPES: Final = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def violations(pod: dict[str, Any]) -> list[str]:
    """Return the rules that the specification of a pod breaks."""
    found = [*_of_pod(pod)]
    for kind in LISTS:
        for container in pod.get(kind, ()):
            found += [f"{container['name']}: {each}" for each in _of_container(container, pod)]
    return found


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    context = pod.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield f"{name} is true"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess is true"
    for volume in pod.get("volumes", ()):
        kinds = volume.keys() - {"name"}
        if not kinds <= VOLUMES:
            yield f"the volume {volume['name']} is of the kind {', '.join(sorted(kinds))}"
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in SYSCTLS:
            yield f"the sysctl {sysctl['name']} is unsafe"
    yield from _of_both(context)


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    of_pod = pod.get("securityContext") or {}
    if own.get("privileged"):
        yield "privileged is true"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in capabilities.get("drop", ()):
        yield "not all capabilities are dropped"
    if not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield "a capability is added"
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type") not in PROFILES:
        yield "seccompProfile is neither RuntimeDefault nor Localhost"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "a port has a hostPort"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name, {})
        if any(probe.get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{name} has a host"
    for name, hook in container.get("lifecycle", {}).items():
        if any(hook.get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{name} has a host"
    yield from _of_both(own)


def _of_both(context: dict[str, Any]) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") == "Unconfined":
        yield "appArmorProfile is Unconfined"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "container_t") not in ("", *SELINUX_TYPES):
        yield f"the SELinux type is {selinux['type']}"
    if selinux.get("user") or selinux.get("role"):
        yield "the SELinux user or role is set"
    if context.get("seccompProfile", {}).get("type") == "Unconfined":
        yield "seccompProfile is Unconfined"
