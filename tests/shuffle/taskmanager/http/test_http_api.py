"""Requests that schemathesis makes of the description, to a TaskManager that runs.

Their number is bounded, and they are the same each time.
"""

from __future__ import annotations

import time

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from sluice.protocol.access_token import make_access_token
from sluice.shuffle.taskmanager.http.openapi import document
from sluice.transport.access import read_secret
from tests.support.daemon import TIMEOUT_SECONDS, Daemon, sluice

pytestmark = pytest.mark.slow

TOKEN = "accessToken"  # its name in the description

EXAMPLES = 15
"""Requests for each route, valid and invalid ones."""

PLAIN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("api")
    secret = directory / "secret"
    sluice("secret", "create", str(secret))
    with Daemon(directory, cluster_secret_files=secret) as daemon:
        yield daemon, read_secret(secret)


def bearer(secret: bytes, scope: str) -> dict[str, str]:
    token = make_access_token(secret, scope, int(time.time()) + 3600).to_text()
    return {"Authorization": f"Bearer {token}"}


def operations():
    """Yield path, method and kinds of requests of each route; invalid ones need a parameter."""
    for path, methods in document()["paths"].items():
        if path == "/api/v1/events":  # a stream does not end: test_event_streams.py reads it
            continue
        for method, operation in methods.items():
            yield path, method, GenerationMode.POSITIVE
            if operation.keys() & {"parameters", "requestBody"}:
                yield path, method, GenerationMode.NEGATIVE


@pytest.mark.parametrize("scope", ["admin", "status", ""])
@pytest.mark.parametrize(("path", "method", "mode"), list(operations()))
def test_answers_are_as_described(daemon, path, method, mode, scope):
    running, secret = daemon
    headers = bearer(secret, scope) if scope else {}
    schema = schemathesis.openapi.from_dict(document())
    schema.config.update(base_url=running.url)
    found = set()

    @PLAIN
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def ask(case):
        answer = case.call(headers=headers, timeout=TIMEOUT_SECONDS)
        found.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    ask()
    expected = document()["paths"][path][method]
    if "security" in expected and scope not in ("admin", expected["security"][0][TOKEN][0]):
        assert found
        assert found <= {401, 403}  # invalid requests may have an invalid token
    elif mode is GenerationMode.POSITIVE:
        # Nothing has the names that are made up for a path.
        assert (404 if "{" in path else 200) in found
