"""Describes the HTTP port in the form of OpenAPI 3.1, made from the code.

Routes, scopes and answers are those of :mod:`api_routes`, the status is that of
:class:`~..status.status.TaskManagerStatus`, and bodies have the types and rules of the
configuration. The HTTP thread makes the document when somebody asks for it.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from ...counters import BoundedCounts
from ..bounds.quotas import QuotaConfig
from ..config.taskmanager_config import TaskManagerConfig
from ..status.status import TaskManagerStatus
from ..store.shuffle_page import ShufflePage
from .api_routes import JSON, ROUTES, Reply
from .cluster_members import ClusterStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .api_routes import Parameter, Route

API_VERSION: Final = "1"
"""Part of the paths. Within a version fields and routes are added, and removed only as
docs/operate/upgrading.md promises."""

_TEXT: Final = {"type": "string"}
_TOKEN: Final = "accessToken"  # noqa: S105 - the name of a scheme

_COUNTS: Final = {"type": "object", "additionalProperties": {"type": "integer"}}


def routes() -> list[web.RouteDef]:
    """Return the route of the description."""
    return [web.get("/api/v1/openapi.json", _serve)]


async def _serve(_request: web.Request) -> web.Response:
    return web.Response(body=encoded(), headers={"Content-Type": f"{JSON}; charset=utf-8"})


@functools.cache
def encoded() -> bytes:
    """Return the document as it is served and committed."""
    return f"{json.dumps(document(), indent=1)}\n".encode()


def document() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The HTTP port of a Sluice TaskManager",
            "version": API_VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Requests with a scope need an access token if the TaskManager has a "
            "cluster secret. Without one, requests that change something must come through the "
            "Unix socket, from the TaskManager's user or root.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                _TOKEN: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by: sluice token create --access SCOPE",
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.path}".replace("/", "_").replace(".", "_"),
        "summary": route.summary,
        "responses": {str(each.code): _response(each) for each in _replies(route)},
    }
    if route.scope:
        operation["security"] = [{_TOKEN: [route.scope]}]
        operation["description"] = f"Scope: {route.scope}."
    if route.parameters:
        operation["parameters"] = [
            _parameter(each, in_path=f"{{{each.name}}}" in route.path) for each in route.parameters
        ]
    if route.body:
        content = {JSON: {"schema": _reference(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(parameter: Parameter, *, in_path: bool) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": "path" if in_path else "query",
        "description": parameter.meaning,
        "schema": parameter.schema,
    }
    return {**described, "required": True} if in_path else described


def _replies(route: Route) -> Iterator[Reply]:
    """Yield all answers of a route."""
    yield from route.replies
    if route.body:
        yield Reply(400, "The body is not JSON, or a value breaks a rule.", "Error")
        yield Reply(408, "The body did not arrive in time.", "Error")
        yield Reply(413, "The body is too large.", "Error")
        yield Reply(415, f"The body is not {JSON}.", "Error")
    if route.scope:
        yield Reply(401, "There is no access token, or it is not accepted.", "Error")
        yield Reply(403, "The request does not have the scope.", "Error")
    if route.asks_data_loop:
        yield Reply(503, "The data loop does not answer.", "Error")


def _response(reply: Reply) -> dict[str, Any]:
    schema = _reference(reply.schema) if reply.schema else _TEXT
    return {"description": reply.meaning, "content": {reply.media_type: {"schema": schema}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        (TaskManagerStatus, ClusterStatus, ShufflePage),
        schema_hook=_schema_of,
        ref_template="#/components/schemas/{name}",
    )
    state = {"enum": found["TaskManagerStatus"]["properties"]["state"]["enum"]}
    quotas = QuotaConfig.model_json_schema()
    level = TaskManagerConfig.model_json_schema()["properties"]["log_level"]
    return {
        **found,
        "Error": _object({"error": _TEXT}),
        "Health": _object({"state": _TEXT, "reason": _TEXT}, "state"),
        "Readiness": _object(
            {"ready": {"type": "boolean"}, "reason": {"type": ["string", "null"]}}
        ),
        "Description": {"type": "object"},
        "Drained": _object(
            {
                "state": state,
                "busy": {"type": "boolean"},
                "moved": {"type": "integer"},
                "staying": {"type": "integer"},
                "reason": _TEXT,
                "unread": {"type": "array", "items": _TEXT},
            },
            "state",
            "busy",
        ),
        "Undrained": _object({"state": state}),
        "LogLevel": _object({"level": {"type": "string", "enum": level["enum"]}}),
        "Quotas": {
            "type": "object",
            "properties": {name: _plain(schema) for name, schema in quotas["properties"].items()},
            "additionalProperties": False,
        },
    }


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is BoundedCounts:
        return _COUNTS
    raise NotImplementedError(f"{kind} has no schema")


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object; without names all its properties are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting without what is not JSON schema, its title and its default.

    A request keeps the values of the keys that it leaves out, so defaults do not apply.
    """
    kept = {name: value for name, value in schema.items() if name not in ("title", "default")}
    if "ge" in kept:
        kept["minimum"] = kept.pop("ge")
    if "anyOf" in kept:
        kept["anyOf"] = [_plain(each) for each in kept["anyOf"]]
    return kept
