"""Writes the JSON schemas with which the tests check what the Helm chart renders.

``python -m tools.charts.schemas``, or ``make chart-schemas``. They are made from the OpenAPI
document of Kubernetes and from the resource definitions of operators, each in a Go module, which Go
checks against its checksum database. They are strict: an unknown key is an error.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # of mkdocs

DIRECTORY: Final = Path(__file__).parents[2] / "tests" / "charts" / "schemas"

KUBERNETES: Final = "k8s.io/kubernetes@v1.34.4"
KINDS: Final = (
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "StatefulSet"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Pod"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "ServiceAccount"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
)

_MONITORING: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_CERTIFICATES: Final = "github.com/cert-manager/cert-manager@v1.19.0"
_SPARK: Final = "github.com/kubeflow/spark-operator/v2@v2.3.0"
CUSTOM: Final = (
    (_MONITORING, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"),
    (_MONITORING, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"),
    (_CERTIFICATES, "deploy/crds/cert-manager.io_certificates.yaml"),
    (_SPARK, "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"),
)
"""Go modules, and the resource definitions in them."""

_KEPT: Final = (
    "additionalProperties",
    "allOf",
    "anyOf",
    "enum",
    "items",
    "maximum",
    "maxLength",
    "minimum",
    "minItems",
    "minLength",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
)
_NUMBER_OR_TEXT: Final = {"type": ["string", "number"]}
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def module_directory(module: str) -> Path:
    """Return where Go has put a module, downloading it if necessary."""
    done = subprocess.run(  # noqa: S603
        ["go", "mod", "download", "-json", module],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
        cwd="/",
    )
    return Path(json.loads(done.stdout)["Dir"])


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without descriptions, which refuses unknown keys."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _NUMBER_OR_TEXT if name == _QUANTITY else {"$ref": f"#/definitions/{name}"}
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return _NUMBER_OR_TEXT
    made = {key: _value(key, value) for key, value in schema.items() if key in _KEPT}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in made and "additionalProperties" not in made and not is_open:
        made["additionalProperties"] = False
    return made


def _value(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: strict(inner) for name, inner in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return strict(value)
    if key in ("allOf", "anyOf", "oneOf"):
        return [{inner: each[inner] for inner in each if inner in _KEPT} for each in value]
    return value


def _names(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_names, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
    return found.union(*map(_names, schema.values()))


def of_kubernetes() -> dict[str, dict[str, Any]]:
    """Return the schemas of Kubernetes' own kinds by their file names."""
    path = module_directory(KUBERNETES) / "api" / "openapi-spec" / "swagger.json"
    definitions = json.loads(path.read_text(encoding="utf-8"))["definitions"]
    made: dict[str, dict[str, Any]] = {}
    for group, version, kind in KINDS:
        wanted = {"group": group, "version": version, "kind": kind}
        root = next(
            name
            for name, each in definitions.items()
            if wanted in each.get("x-kubernetes-group-version-kind", ())
        )
        used: dict[str, Any] = {}
        open_names = [root]
        while open_names:
            name = open_names.pop()
            if name not in used:
                used[name] = strict(definitions[name])
                open_names += sorted(_names(used[name]))
        top = used.pop(root)
        top["properties"]["apiVersion"] = {"enum": [f"{group}/{version}".lstrip("/")]}
        top["properties"]["kind"] = {"enum": [kind]}
        top["required"] = ["apiVersion", "kind", "metadata"]
        made[_file_name(group, version, kind)] = {**top, "definitions": used}
    return made


def of_operators() -> dict[str, dict[str, Any]]:
    """Return the schemas of operators' kinds by their file names."""
    made: dict[str, dict[str, Any]] = {}
    for module, file in CUSTOM:
        text = (module_directory(module) / file).read_text(encoding="utf-8")
        definition = next(each for each in yaml.safe_load_all(text) if each)["spec"]
        for version in definition["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            name = _file_name(definition["group"], version["name"], definition["names"]["kind"])
            made[name] = schema
    return made


def _file_name(group: str, version: str, kind: str) -> str:
    """Return the name that kubeconform looks for: {{.ResourceKind}}{{.KindSuffix}}.json."""
    return "-".join(filter(None, (kind.lower(), group.partition(".")[0], version))) + ".json"


def main() -> None:
    """Write the schemas."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for old in DIRECTORY.glob("*.json"):
        old.unlink()
    for name, schema in {**of_kubernetes(), **of_operators()}.items():
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        (DIRECTORY / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
