"""A client of the Kubernetes API: it speaks JSON over HTTPS."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.compose.commands import ComposeTestFailed

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_SECONDS = 30
_NOT_FOUND = 404


class NotFound(ComposeTestFailed):
    """The API has no such object."""


class Api:
    """The API of a cluster, as one user.

    Args:
        host: Of the API server.
        port: Of the API server.
        authority: Certificate file of the authority that has signed its certificate.
        token: Bearer token of the user.
    """

    def __init__(self, host: str, port: int, authority: Path, token: str) -> None:
        self._url = f"https://{host}:{port}"
        self._token = token
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authority))),
        )

    def is_ready(self) -> bool | str:
        """Return True if the API server is ready, or why not."""
        try:
            self._send("GET", "/readyz")
        except ComposeTestFailed as error:
            return str(error)
        return True

    def get(self, path: str, **query: str) -> Any:
        """Return the object or list at a path.

        Raises:
            NotFound: There is none.
            ComposeTestFailed: The API answered with another error, or not at all.
        """
        words = f"?{urllib.parse.urlencode(query)}" if query else ""
        return json.loads(self._send("GET", path + words))

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        items: list[dict[str, Any]] = self.get(path, **query)["items"]
        return items

    def exists(self, path: str) -> bool:
        """Return whether there is an object at a path."""
        try:
            self.get(path)
        except NotFound:
            return False
        return True

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Make an object."""
        return json.loads(self._send("POST", path, body))

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        """Apply a merge patch to an object."""
        return json.loads(self._send("PATCH", path, body, "application/merge-patch+json"))

    def delete(self, path: str, grace_seconds: int | None = None) -> None:
        """Delete an object, or all objects of a list. Idempotent."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        with contextlib.suppress(NotFound):
            self._send("DELETE", path, body)

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> str:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": content_type},
        )
        try:
            with self._opener.open(request, timeout=_ANSWER_SECONDS) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            kind = NotFound if error.code == _NOT_FOUND else ComposeTestFailed
            raise kind(f"{method} {path}: {error.code} {said}") from None
        except OSError as error:
            raise ComposeTestFailed(f"{method} {path}: {error}") from error
