"""TaskManagers installed by the chart, and the applications beside them."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import yaml  # type: ignore[import-untyped]

from tests.compose.commands import ComposeTestFailed, run, wait_until
from tests.compose.images import REPOSITORY
from tests.kubernetes.cluster import NODES
from tests.kubernetes.spark import SPARK_VERSION, SparkPlace
from tests.support.daemons import is_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.images import Image

Mode: TypeAlias = Literal["DaemonSet", "StatefulSet"]

RELEASE = "sluice"
_LABELS = f"app.kubernetes.io/instance={RELEASE}"
_STORAGE_CLASS = "local"
_VOLUMES_PER_NODE = 2
_INSTALL_SECONDS = 300
_GONE_SECONDS = 240
_COMMAND_SECONDS = 60
_AUTHORITY = "sluice-ca"
_TOKEN = "sluice-token"
_RETURN = "120s"
"""Longer than a pod needs to be replaced."""
_RETURN_SETTINGS = (
    "spark.sluice.reader.returnTimeout",
    "spark.sluice.reader.refusedTimeout",
    "spark.sluice.writer.returnTimeout",
)


class Installation:
    """A release of the chart in a namespace of its own, with a place for Spark applications.

    Args:
        cluster: The cluster.
        mode: The chart's ``mode``.
        images: Images of the product, by target of the Dockerfile.
        chart: Directory of the chart.
    """

    def __init__(
        self, cluster: Cluster, mode: Mode, images: Mapping[str, Image], chart: Path
    ) -> None:
        self.cluster = cluster
        self.mode: Mode = mode
        self.namespace = f"sluice-{mode.lower()}"
        self.spark_namespace = f"spark-{mode.lower()}"
        self.chart = chart
        self.image = images["taskmanager"]
        self._images = images
        self._values: dict[str, Any] = {}

    @property
    def spark(self) -> SparkPlace:
        """Where applications run that use these TaskManagers, as docs/guide/kubernetes.md says."""
        service = f"{RELEASE}.{self.namespace}.svc"
        printed = self._sluice(
            *("spark-conf", f"--kubernetes={self.mode.lower()}", f"--endpoints=dns:{service}:7337"),
            *(f"--spark-version={SPARK_VERSION}", f"--token-secret={_TOKEN}"),
            *([f"--ca-secret={_AUTHORITY}"] if self.mode == "StatefulSet" else []),
        )
        words = shlex.split(printed)
        settings = dict(word.split("=", 1) for word in words if not word.startswith("--"))
        settings |= dict.fromkeys(_RETURN_SETTINGS, _RETURN)
        template = REPOSITORY / "deploy" / "kubernetes" / f"executor-{self.mode.lower()}.yaml"
        return SparkPlace(
            self.cluster,
            self.spark_namespace,
            self._images["spark"].name,
            settings,
            yaml.safe_load(template.read_text()),
        )

    def install(self, **values: Any) -> None:
        """Install the chart, with volumes if it needs them; return when all pods are ready."""
        level = "restricted" if self.mode == "StatefulSet" else "privileged"
        self.cluster.create(
            _namespace(self.namespace, {"pod-security.kubernetes.io/enforce": level}),
            _namespace(self.spark_namespace, {}),
        )
        if self.mode == "StatefulSet":
            self._make_volumes()
        self._values = {
            "mode": self.mode,
            "replicas": len(NODES),
            "image": self.image_values(self.image),
            "memory": "768Mi",
            "cpu": {"request": "100m"},
            "storage": {"size": "1Gi", "storageClassName": _STORAGE_CLASS},
            "config": {"storage": {"min_free_bytes": 0}},
            # Policies do not apply to a DaemonSet, because it uses the network of its node.
            "networkPolicy": {
                "enabled": self.mode == "StatefulSet",
                "clientNamespaces": [self.spark_namespace],
            },
            **values,
        }
        self._helm("install")
        secrets = {_TOKEN: {"token": self._submit_token()}}
        if self.mode == "StatefulSet":
            secrets[_AUTHORITY] = {"ca.crt": self._secret(f"{RELEASE}-ca", "ca.crt")}
        self.spark.prepare(secrets)

    def image_values(self, image: Image) -> dict[str, str]:
        """Return the chart's ``image`` for an image that the nodes have."""
        repository, tag = image.name.split(":")
        return {"repository": repository, "tag": tag, "pullPolicy": "Never"}

    def upgrade(self, *, chart: Path | None = None, **values: Any) -> None:
        """Change values of the release; return when all pods are replaced and ready.

        Args:
            chart: Another chart than that of the installation.
            values: That replace those of the release.
        """
        self._values |= values
        self._helm("upgrade", chart)

    def uninstall(self) -> None:
        """Remove the release; return when its pods are gone."""
        self.cluster.helm("uninstall", RELEASE, f"--namespace={self.namespace}", "--wait")
        wait_until(
            "pods of TaskManagers are gone",
            lambda: not self.pods() or str([pod["metadata"]["name"] for pod in self.pods()]),
            timeout_seconds=_GONE_SECONDS,
        )

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the TaskManagers, in the order of their names."""
        pods = self.cluster.pods(self.namespace, _LABELS)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def pod_on(self, node: str) -> str:
        """Return the name of a TaskManager's pod on a node."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                return str(pod["metadata"]["name"])
        raise ComposeTestFailed(f"no TaskManager on {node}")

    def kill(self, pod: str) -> None:
        """Kill the processes of a TaskManager; the kubelet starts the container again."""
        found = next(each for each in self.pods() if each["metadata"]["name"] == pod)
        node = self.cluster.nodes[found["spec"]["nodeName"]]
        (status,) = found["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        node.containerd("tasks", "kill", "--signal=SIGKILL", container)

    def delete(self, pod: str) -> None:
        """Delete a pod without grace; another one takes its place."""
        self.cluster.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{pod}", grace_seconds=0)

    def wait_ready(self, count: int = len(NODES)) -> None:
        """Wait until there are ``count`` pods, and all are ready."""

        def ready() -> bool | str:
            self.cluster.check()
            states = {pod["metadata"]["name"]: _is_ready(pod) for pod in self.pods()}
            return (len(states) == count and all(states.values())) or str(states)

        wait_until(f"{count} TaskManagers ready", ready, timeout_seconds=_INSTALL_SECONDS)

    def wait_rolled_out(self) -> None:
        """Wait until all pods have the newest template, and are ready."""
        self.cluster.kubectl(
            *("rollout", "status", f"--namespace={self.namespace}", f"{self.mode}/{RELEASE}"),
            f"--timeout={_INSTALL_SECONDS}s",
            timeout_seconds=_INSTALL_SECONDS + 30,
        )

    def committed(self, application: str) -> dict[str, int]:
        """Return the number of map outputs of an application by TaskManager pod."""
        ready = [str(pod["metadata"]["name"]) for pod in self.pods() if _is_ready(pod)]
        return {
            name: sum(
                each["committed_map_outputs"]
                for each in self.status(name)["partitions"]
                if is_of(application, each["application_id"])
            )
            for name in ready
        }

    def status(self, pod: str) -> dict[str, Any]:
        """Return the status of a TaskManager."""
        said = self.cluster.kubectl(
            *("exec", f"--namespace={self.namespace}", pod, "--container=taskmanager", "--"),
            *("sluice", "status", "--json"),
        )
        status: dict[str, Any] = json.loads(said[said.index("{") :])
        return status

    def leftovers(self) -> list[str]:
        """Return the objects of the release that are in the namespace or in the whole cluster."""
        kinds = self.cluster.kubectl("api-resources", "--verbs=list,delete", "--output=name")
        names = ",".join(kinds.split())
        found = self.cluster.kubectl(
            *("get", names, "--all-namespaces", "--output=name", "--ignore-not-found"),
            f"--selector={_LABELS}",
        )
        # kubectl also prints warnings about old kinds.
        return sorted(
            {line for line in found.splitlines() if re.fullmatch(r"[a-z.0-9]+/\S+", line)}
        )

    def save_logs(self, directory: Path) -> None:
        """Write the logs of all pods, their descriptions and the events below a directory."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for namespace in (self.namespace, self.spark_namespace):
            space = f"--namespace={namespace}"
            for pod in self.cluster.pods(namespace):
                name = str(pod["metadata"]["name"])
                for suffix, option in (("", "--previous=false"), (".previous", "--previous")):
                    try:
                        log = self.cluster.kubectl("logs", space, name, "--all-containers", option)
                    except ComposeTestFailed as error:
                        log = str(error)
                    (directory / f"{name}{suffix}.log").write_text(log)
            pods = self.cluster.kubectl("describe", space, "pods")
            events = self.cluster.kubectl("get", "events", space, "--sort-by=.lastTimestamp")
            (directory / f"{namespace}-pods").write_text(pods)
            (directory / f"{namespace}-events").write_text(events)

    def clean_up(self) -> None:
        """Delete the applications of a case; nothing of them may be left when the next begins."""
        self.cluster.api.delete(f"/api/v1/namespaces/{self.spark_namespace}/pods", grace_seconds=0)

    def remove(self) -> None:
        """Remove everything, including what `helm uninstall` leaves: data on nodes, volumes."""
        for namespace in (self.spark_namespace, self.namespace):
            self.cluster.delete_namespace(namespace)
        for volume in self.cluster.api.items("/api/v1/persistentvolumes"):
            self.cluster.api.delete(f"/api/v1/persistentvolumes/{volume['metadata']['name']}")
        self.cluster.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{_STORAGE_CLASS}")
        for node in self.cluster.nodes.values():
            node.run("sh", "-c", "rm -rf /var/lib/sluice /var/lib/volumes /dev/shm/* /run/sluice")

    def _helm(self, verb: str, chart: Path | None = None) -> None:
        values = self.cluster.directory / f"{self.namespace}.json"
        values.write_text(json.dumps(self._values))
        self.cluster.helm(
            *(verb, RELEASE, str(chart or self.chart), f"--namespace={self.namespace}", "--wait"),
            *(f"--values={values}", f"--timeout={_INSTALL_SECONDS}s"),
            timeout_seconds=_INSTALL_SECONDS + 30,
        )
        self.wait_rolled_out()

    def _submit_token(self) -> str:
        return self.cluster.kubectl(
            *("exec", f"--namespace={self.namespace}", f"{self.mode}/{RELEASE}"),
            *("--container=taskmanager", "--", "sluice", "token", "create"),
            *("--subject=tests", "--expires=1d"),
        ).strip()

    def _sluice(self, *arguments: str) -> str:
        """Run the command line of this checkout."""
        command = [sys.executable, "-c", "from sluice.cli.main import main; main()", *arguments]
        return run(command, timeout_seconds=_COMMAND_SECONDS, directory=REPOSITORY)

    def _secret(self, name: str, key: str) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{name}"
        return base64.b64decode(self.cluster.api.get(path)["data"][key]).decode()

    def _make_volumes(self) -> None:
        """Make local volumes, as an administrator does where there is no provisioner."""
        self.cluster.create(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": _STORAGE_CLASS},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        )
        for name, node in self.cluster.nodes.items():
            for number in range(_VOLUMES_PER_NODE):
                path = f"/var/lib/volumes/{number}"
                node.run("mkdir", "-p", path)
                self.cluster.create(_volume(f"{name}-{number}", name, path))


def _namespace(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _volume(name: str, node: str, path: str) -> dict[str, Any]:
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": _STORAGE_CLASS,
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def _is_ready(pod: dict[str, Any]) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
