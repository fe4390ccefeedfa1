"""Spark applications in cluster mode: driver and executors are pods."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.compose.commands import ComposeTestFailed, tail, wait_until
from tests.kubernetes.control_plane import URL
from tests.kubernetes.event_log import read_event_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.event_log import TaskCounts

ACCOUNT = "spark"
SPARK_VERSION = "4.3.0"
SHARED = "/shared"
"""Directory of the test, as pods see it."""
DEMO = "/opt/jobs/demo.py"
HELD = f"{SHARED}/held.py"
SLUICE_MANAGER = "io.sluice.spark.SluiceShuffleManager"
REACHED = "reached"
TIMED_OUT = "timed out"
STRANGERS = "strangers"
"""A namespace without TaskManagers."""
_PROBE = f"""
import socket, sys
# Long enough for a policy to learn the address of this pod: the kernel tries again until then.
try:
    socket.create_connection((sys.argv[1], 7337), 8).close()
except OSError as error:
    print("{TIMED_OUT}" if isinstance(error, TimeoutError) else error)
else:
    print("{REACHED}")
"""
_JOBS = Path(__file__).resolve().parent / "jobs"
_SUBMITTED_SECONDS = 180
_ARRIVED_SECONDS = 240
_JOB_SECONDS = 600
_EXECUTORS = 2


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """The namespace of applications, and their settings.

    Attributes:
        cluster: The cluster.
        namespace: The namespace of all pods.
        image: The image of all pods.
        settings: Settings of Sluice.
        template: Pod template of executors.
    """

    cluster: Cluster
    namespace: str
    image: str
    settings: Mapping[str, str]
    template: Mapping[str, Any]

    def prepare(self, secrets: Mapping[str, Mapping[str, str]]) -> None:
        """Create an account that may start pods, and Secrets.

        Args:
            secrets: Contents of the Secrets by key, by name.
        """
        self.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": ACCOUNT, "namespace": self.namespace},
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": ACCOUNT, "namespace": self.namespace},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "edit",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}
                ],
            },
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": name, "namespace": self.namespace},
                    "stringData": dict(contents),
                }
                for name, contents in secrets.items()
            ),
        )

    def submit(
        self,
        name: str,
        script: str,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
    ) -> SparkJob:
        """Submit an application from a pod; return when its driver has a pod.

        Args:
            name: Of the application, unique in the namespace.
            script: Its path in the pods.
            arguments: Of the script.
            settings: Of Spark, beside those of the place; an empty value removes one of these.
        """
        shared = self.cluster.directory / "shared" / self.namespace / name
        shared.mkdir(parents=True)
        shared.chmod(0o777)
        (shared / "events").mkdir()
        (shared / "events").chmod(0o777)
        shutil.copy(_JOBS / "held.py", shared)
        template = _spread(self.template, name)
        (shared / "executor.json").write_text(json.dumps(template))
        merged = {**self._settings(name, shared), **self.settings, **(settings or {})}
        lines = (f"{key} {value}\n" for key, value in merged.items() if value)
        (shared / "spark.conf").write_text("".join(lines))
        submit = f"{name}-submit"
        command = [
            *("spark-submit", "--master", f"k8s://{URL}", "--deploy-mode", "cluster"),
            *("--name", name, "--properties-file", f"{SHARED}/spark.conf"),
            *(f"local://{script}", *arguments),
        ]
        self.cluster.create(self._submit_pod(submit, shared, command))
        job = SparkJob(self, name, shared)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{submit}"

        def submitted() -> bool | str:
            self.cluster.check()
            phase = self.cluster.api.get(path)["status"].get("phase", "none")
            if phase == "Failed":
                raise ComposeTestFailed(f"{name} was not submitted:\n{tail(job.log(submit))}")
            return phase == "Succeeded" or phase

        wait_until(f"{name} is submitted", submitted, timeout_seconds=_SUBMITTED_SECONDS)
        self.cluster.api.delete(path)
        return job

    def probe(self, name: str, namespace: str, address: str, labels: dict[str, str]) -> str:
        """Connect to a data port from a new pod; return the result.

        Args:
            name: Of the pod.
            namespace: Of the pod; made if there is none.
            address: Of the TaskManager.
            labels: Of the pod.
        """
        api = self.cluster.api
        if not api.exists(f"/api/v1/namespaces/{namespace}"):
            self.cluster.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            )
        container = {
            "name": "probe",
            "image": self.image,
            "imagePullPolicy": "Never",
            "args": ["python", "-c", _PROBE, address],
        }
        self.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"

        def ended() -> bool | str:
            phase = str(api.get(path)["status"].get("phase", "none"))
            return phase in {"Succeeded", "Failed"} or phase

        wait_until(f"pod {name} ends", ended, timeout_seconds=_SUBMITTED_SECONDS)
        said = self.cluster.kubectl("logs", f"--namespace={namespace}", name)
        api.delete(path, grace_seconds=0)
        return said.strip()

    def _settings(self, name: str, shared: Path) -> dict[str, str]:
        volume = "spark.kubernetes.{role}.volumes.hostPath.shared"
        settings = {
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.container.image": self.image,
            "spark.kubernetes.container.image.pullPolicy": "Never",
            "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
            "spark.kubernetes.driver.pod.name": f"{name}-driver",
            "spark.kubernetes.driver.request.cores": "100m",
            "spark.kubernetes.executor.request.cores": "100m",
            # Tests never drain this node.
            "spark.kubernetes.driver.node.selector.kubernetes.io/hostname": "node-1",
            "spark.kubernetes.executor.podTemplateFile": f"{SHARED}/executor.json",
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": str(_EXECUTORS),
            "spark.executor.cores": "1",
            # Both executors get map tasks: none starts before both are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{SHARED}/events",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        for role in ("driver", "executor"):
            prefix = volume.format(role=role)
            settings[f"{prefix}.mount.path"] = SHARED
            settings[f"{prefix}.options.path"] = str(shared)
        return settings

    def _submit_pod(self, name: str, shared: Path, command: Sequence[str]) -> dict[str, Any]:
        container = {
            "name": "submit",
            "image": self.image,
            "imagePullPolicy": "Never",
            "args": list(command),
            "env": [{"name": "SPARK_SUBMIT_OPTS", "value": "-XX:TieredStopAtLevel=1"}],
            "volumeMounts": [{"name": "shared", "mountPath": SHARED}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": ACCOUNT,
                "nodeSelector": {"kubernetes.io/hostname": "node-1"},
                "containers": [container],
                "volumes": [{"name": "shared", "hostPath": {"path": str(shared)}}],
            },
        }


class SparkJob:
    """An application whose driver has a pod."""

    def __init__(self, place: SparkPlace, name: str, shared: Path) -> None:
        self._place = place
        self._name = name
        self._shared = shared

    def wait_for_arrivals(self, point: str, count: int) -> None:
        """Wait until tasks have arrived at a point.

        Raises:
            ComposeTestFailed: Fewer arrived in time, or the application has ended.
        """

        def arrived() -> bool | str:
            self._place.cluster.check()
            self._raise_if_failed()
            found = len(list(self._shared.glob(f"arrived-{point}-*")))
            return found >= count or f"{found} arrived"

        wait_until(
            f"{count} tasks of {self._name} arrive at {point}",
            arrived,
            timeout_seconds=_ARRIVED_SECONDS,
        )

    def release(self, *points: str) -> None:
        """Let tasks continue at these points, now and later."""
        for point in points:
            (self._shared / f"go-{point}").touch()

    def finish(self) -> tuple[dict[str, str], TaskCounts]:
        """Wait for the end of the application; return its printed outcome and its tasks.

        Raises:
            ComposeTestFailed: It failed, or did not end in time.
        """

        def ended() -> bool | str:
            self._place.cluster.check()
            self._raise_if_failed()
            phase = self._phase()
            return phase == "Succeeded" or phase

        wait_until(f"{self._name} ends", ended, timeout_seconds=_JOB_SECONDS)
        counts = read_event_log(next((self._shared / "events").iterdir()))
        return _outcome(self.log(f"{self._name}-driver")), counts

    def log(self, pod: str) -> str:
        """Return what a pod has printed."""
        return self._place.cluster.kubectl("logs", f"--namespace={self._place.namespace}", pod)

    @property
    def application(self) -> str:
        """Spark's id of the application."""
        return str(self._driver()["metadata"]["labels"]["spark-app-selector"])

    def _phase(self) -> str:
        return str(self._driver()["status"].get("phase", "none"))

    def _driver(self) -> Any:
        path = f"/api/v1/namespaces/{self._place.namespace}/pods/{self._name}-driver"
        return self._place.cluster.api.get(path)

    def _raise_if_failed(self) -> None:
        if self._phase() == "Failed":
            log = self.log(f"{self._name}-driver")
            reasons = re.findall(r"^[^\n]*(?:Exception|Error): [^\n]+", log, re.MULTILINE)
            reason = reasons[-1].strip() if reasons else "without an exception in its log"
            raise ComposeTestFailed(f"application {self._name} failed: {reason}\n{tail(log)}")


def _spread(template: Mapping[str, Any], job: str) -> dict[str, Any]:
    """Return a pod template whose pods are spread over the nodes that take new ones."""
    labels = {"job": job}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": labels},
    }
    spec = {**template["spec"], "topologySpreadConstraints": [constraint]}
    return {**template, "metadata": {"labels": labels}, "spec": spec}


def _outcome(log: str) -> dict[str, str]:
    """Return the facts that a job has printed: a line of JSON, or lines ``name: value``."""
    for line in reversed(log.splitlines()):
        if line.startswith('{"'):
            return {key: str(value) for key, value in json.loads(line).items()}
    pairs = (line.split(": ", 1) for line in log.splitlines() if ": " in line)
    return {pair[0]: pair[1] for pair in pairs if pair[0] in {"seconds", "shuffle", "digest"}}
