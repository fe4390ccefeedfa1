"""An upgrade keeps the secrets that the chart made: Helm looks them up in an API server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.charts.rig import (
    CHART,
    NAMESPACE,
    RELEASE,
    Rendered,
    Values,
    helm,
    needs_helm,
    objects_of,
    template,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_helm


class Handler(BaseHTTPRequestHandler):
    """An API server of which Helm reads its version, its kinds and Secrets."""

    secrets: ClassVar[dict[str, dict[str, Any]]] = {}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        listed = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        prefix = f"{listed}/"
        found: dict[str, Any] | None
        if path == listed:  # of Helm's own releases
            found = {"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}
        elif path.startswith(prefix):
            found = self.secrets.get(path.removeprefix(prefix))
        else:
            found = _DISCOVERY.get(path)
        body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _resources(version: str, *kinds: str) -> dict[str, Any]:
    """Return an answer about the kinds of a version of the API."""
    return {
        "kind": "APIResourceList",
        "groupVersion": version,
        "resources": [
            {
                "name": f"{kind.lower()}s",
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": ["get", "list"],
            }
            for kind in kinds
        ],
    }


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


_DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group("apps"), _group("policy")],
    },
    "/api/v1": _resources("v1", "ConfigMap", "Secret", "Service", "ServiceAccount"),
    "/apis/apps/v1": _resources("apps/v1", "DaemonSet", "StatefulSet"),
    "/apis/policy/v1": _resources("policy/v1", "PodDisruptionBudget"),
}


@pytest.fixture
def api() -> Iterator[str]:
    Handler.secrets = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def installed(api: str, values: Values) -> Rendered:
    done = template(values, "--dry-run=server", f"--kube-apiserver={api}")
    assert done.returncode == 0, done.stderr
    return Rendered(objects_of(done.stdout))


def keep(objects: Rendered) -> None:
    """Let the API server have the Secrets of a release."""
    Handler.secrets |= {
        each["metadata"]["name"]: {**each, "apiVersion": "v1"}
        for each in objects
        if each["kind"] == "Secret"
    }


@pytest.mark.parametrize("mode", ["DaemonSet", "StatefulSet"])
def test_secrets_of_the_first_installation_stay(api: str, mode: str):
    values = {"mode": mode, "tls": {"source": "generated"}}
    first = installed(api, values)
    assert installed(api, values) != first  # nothing is kept yet
    keep(first)
    second = installed(api, values)
    assert first.kinds().count("Secret") == 3
    assert second == first


def test_only_the_own_key_of_a_kept_secret_is_rendered(api: str):
    first = installed(api, {"auth": {"key": "a"}})
    keep(first)
    kept = Handler.secrets["sluice-cluster-secret"]
    kept["data"]["other"] = "eA=="
    second = installed(api, {"auth": {"key": "a"}})
    assert second.one("Secret")["data"] == {"a": kept["data"]["a"]}
    assert installed(api, {"auth": {"key": "b"}}).one("Secret")["data"]["b"] != kept["data"]["a"]


def test_a_deleted_certificate_is_made_again(api: str):
    values = {"mode": "StatefulSet"}
    first = installed(api, values)
    keep(first)
    del Handler.secrets["sluice-tls"]
    second = installed(api, values)
    assert second.one("Secret", "sluice-cluster-secret") == first.one(
        "Secret", "sluice-cluster-secret"
    )
    assert second.one("Secret", "sluice-tls") != first.one("Secret", "sluice-tls")
    assert second.one("Secret", "sluice-ca") != first.one("Secret", "sluice-ca")


def notes(api: str, values: Values) -> str:
    """Return what Helm prints after an installation."""
    command = ["install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--dry-run=client"]
    command += ["--disable-openapi-validation", f"--kube-apiserver={api}"]
    done = helm(command, values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:\n")[2]


@pytest.mark.parametrize("mode", ["DaemonSet", "StatefulSet"])
def test_the_notes_name_the_next_commands(api: str, mode: str):
    text = notes(api, {"mode": mode})
    assert f"rollout status {mode.lower()}/sluice" in text
    assert f"exec {mode.lower()}/sluice --container taskmanager -- " in text
    command = (
        f"sluice spark-conf --kubernetes {mode.lower()} "
        f"--endpoints dns:sluice.{NAMESPACE}.svc:7337 --token-secret sluice-token"
    )
    assert command in text
    assert ("--ca-secret sluice-ca" in text) is (mode == "StatefulSet")
    assert "WARNING" not in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"auth": {"allowAnonymous": True}}, "auth.allowAnonymous is set"),
        ({"mode": "StatefulSet", "tls": {"source": "none"}}, "tls.source is none"),
        ({"mode": "StatefulSet", "replicas": 1}, "replicas is 1"),
    ],
)
def test_the_notes_warn(api: str, values: Values, warning: str):
    assert f"WARNING: {warning}" in notes(api, values)
