"""Settings of applications whose executors are pods, for both modes of the Helm chart.

The paths are those of the chart and of the images; docs/guide/kubernetes.md has the pod templates.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .endpoint_check import TOKEN_FILE
from .errors import SparkIntegrationError

DAEMONSET: Final = "daemonset"
STATEFULSET: Final = "statefulset"
MODES: Final = (DAEMONSET, STATEFULSET)

JAR: Final = "local:///opt/sluice/sluice-spark.jar"
"""The plugin in the image `spark`."""

SOCKET_DIRECTORY: Final = "/run/sluice"
SOCKET: Final = f"unix:{SOCKET_DIRECTORY}/taskmanager.sock"
TOKEN_DIRECTORY: Final = "/run/sluice-token"  # noqa: S105 - a path
TLS_DIRECTORY: Final = "/run/sluice-tls"
LOCAL_DIRECTORY: Final = "/var/lib/spark/local"

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SIZE: Final = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?")


class PodOptions(NamedTuple):
    """Options for the pods of an application.

    Attributes:
        mode: The mode of the chart, one of ``MODES``.
        token_secret: Secret with a submit token in the key ``token``; None: none.
        ca_secret: Secret with the authority of the TaskManagers in ``ca.crt``; None: none.
        tls_secret: The same with a client certificate in ``tls.crt`` and ``tls.key``.
        pod_template: File with the pod template of executors; None: none.
        local_dir_size: Limit of the executors' local directory; None: Spark's own directory.
    """

    mode: str
    token_secret: str | None = None
    ca_secret: str | None = None
    tls_secret: str | None = None
    pod_template: str | None = None
    local_dir_size: str | None = None


def endpoint_list(mode: str, endpoints: str | None) -> str:
    """Return the endpoints of an application; for ``daemonset`` the socket comes first.

    Raises:
        SparkIntegrationError: The driver cannot reach any of them.
    """
    listed = [each.strip() for each in (endpoints or "").split(",") if each.strip()]
    if not any(not each.startswith("unix:") for each in listed):
        raise SparkIntegrationError(
            "The driver needs an endpoint that it reaches over TCP",
            value=endpoints or "none",
            remedy="Name the service of the chart: --endpoints dns:sluice.NAMESPACE.svc:7337",
        )
    is_local = any(each.startswith("unix:") for each in listed)
    return ",".join([SOCKET, *listed] if mode == DAEMONSET and not is_local else listed)


def pod_conf(options: PodOptions) -> dict[str, str]:
    """Return the settings of Spark that give pods what Sluice needs.

    Raises:
        SparkIntegrationError: A name or a size is not valid in Kubernetes, or both Secrets for
            TLS are given.
    """
    for name in (options.token_secret, options.ca_secret, options.tls_secret):
        if name is not None and not _NAME.fullmatch(name):
            raise SparkIntegrationError(
                "This cannot be the name of a Secret",
                value=name,
                limit="lowercase letters, digits, - and .",
                remedy="Give the name only; the Secret is in the namespace of the driver",
            )
    if options.ca_secret is not None and options.tls_secret is not None:
        raise SparkIntegrationError(
            "Both --tls-secret and --ca-secret are given",
            value=f"{options.ca_secret}, {options.tls_secret}",
            remedy="Give --tls-secret if TaskManagers require certificates, else --ca-secret",
        )
    conf: dict[str, str] = {}
    if options.pod_template is not None:
        conf["spark.kubernetes.executor.podTemplateFile"] = options.pod_template
    if options.mode == DAEMONSET:
        volume = "spark.kubernetes.executor.volumes.hostPath.sluice"
        conf[f"{volume}.mount.path"] = SOCKET_DIRECTORY
        conf[f"{volume}.options.path"] = SOCKET_DIRECTORY
    if options.token_secret is not None:
        conf[f"spark.kubernetes.driver.secrets.{options.token_secret}"] = TOKEN_DIRECTORY
        conf[TOKEN_FILE] = f"{TOKEN_DIRECTORY}/token"
    conf |= _tls_conf(options)
    if options.local_dir_size is not None:
        if not _SIZE.fullmatch(options.local_dir_size):
            raise SparkIntegrationError(
                "This is not a size in Kubernetes notation",
                value=options.local_dir_size,
                remedy="Write it like 512Mi or 2Gi",
            )
        # Spark takes volumes of this name as its local directories.
        volume = "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1"
        conf[f"{volume}.mount.path"] = LOCAL_DIRECTORY
        conf[f"{volume}.options.sizeLimit"] = options.local_dir_size
    return conf


def _tls_conf(options: PodOptions) -> dict[str, str]:
    secret = options.tls_secret or options.ca_secret
    if secret is None:
        return {}
    conf = {
        f"spark.kubernetes.driver.secrets.{secret}": TLS_DIRECTORY,
        f"spark.kubernetes.executor.secrets.{secret}": TLS_DIRECTORY,
        "spark.sluice.ssl.enabled": "true",
        "spark.sluice.ssl.caFile": f"{TLS_DIRECTORY}/ca.crt",
    }
    if options.tls_secret is not None:
        conf["spark.sluice.ssl.certChain"] = f"{TLS_DIRECTORY}/tls.crt"
        conf["spark.sluice.ssl.privateKey"] = f"{TLS_DIRECTORY}/tls.key"
    if options.mode == DAEMONSET or options.tls_secret is None:
        # A DaemonSet advertises addresses of nodes, which certificates do not have. An authority
        # that the chart makes signs one certificate only, so the check would add nothing.
        conf["spark.sluice.ssl.checkHostName"] = "false"
    return conf
