"""Requests to the remote store: credentials, and failures in words."""

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure, failure_in_words
from sluice.shuffle.taskmanager.store.objects.remote_objects import RemoteObjects, file_credentials
from tests.support.store import config

SECRET = "AKIASECRET"


class GenericError(Exception):
    """As obstore names it."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"status code: 503 <Code>SlowDown</Code>{SECRET}",
            "it answers status 503, SlowDown",
        ),
        (f"status code: 403: {SECRET}", "it answers status 403"),
        (f"Connection refused {SECRET}", "connection refused"),
        (f"operation timed out {SECRET}", "no answer in time"),
        (f"No space left on device (os error 28) {SECRET}", "No space left on device"),
        (f"something about {SECRET}", "GenericError"),
    ],
)
def test_a_failure_is_told_in_known_phrases(text, reason):
    failure = failure_in_words(GenericError(text))
    assert failure.reason == reason
    assert failure.full == ("os error 28" in text)
    assert not failure.missing
    assert SECRET not in str(failure)


def test_a_missing_object_is_not_a_missing_bucket():
    assert failure_in_words(FileNotFoundError("Object not found")).missing
    assert not failure_in_words(FileNotFoundError("<Code>NoSuchBucket</Code>")).missing
    known = RemoteFailure("x")
    assert failure_in_words(known) is known


def credentials_file(directory, text):
    path = directory / "credentials"
    path.write_text(text, encoding="utf-8")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(path)}


FILE = """
[default]
aws_access_key_id = one
aws_secret_access_key = two
[other]
aws_access_key_id = three
aws_secret_access_key = four
aws_session_token = five
"""


def test_the_shared_credentials_file_is_read_again(tmp_path):
    names = credentials_file(tmp_path, FILE)
    provide = file_credentials(names | {"AWS_PROFILE": "other"})
    assert provide is not None
    given = provide()
    assert [given[key] for key in ("access_key_id", "secret_access_key", "token")] == [
        "three",
        "four",
        "five",
    ]
    credentials_file(tmp_path, FILE.replace("three", "six"))
    assert provide()["access_key_id"] == "six"


@pytest.mark.parametrize(
    "changes",
    [
        {"AWS_ACCESS_KEY_ID": "of the environment"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/a/token"},
        {"AWS_PROFILE": "unknown"},
        {"AWS_SHARED_CREDENTIALS_FILE": "/no/such/file"},
    ],
)
def test_the_file_comes_behind_the_environment(tmp_path, changes):
    assert file_credentials(credentials_file(tmp_path, FILE) | changes) is None


async def test_the_credentials_of_the_file_are_used(tmp_path, s3, monkeypatch):
    from tests.support.s3 import ACCESS_KEY, SECRET_KEY

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    text = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    for name, value in credentials_file(tmp_path, text).items():
        monkeypatch.setenv(name, value)
    url = f"s3://{s3.bucket()}/prefix"
    objects = RemoteObjects.open(config(tmp_path, remote_endpoint=s3.endpoint), url)
    await objects.put("name", b"bytes")
    assert await objects.get("name") == b"bytes"
    with pytest.raises(RemoteFailure) as exists:
        await objects.put("name", b"others", new=True)
    assert exists.value.exists
    assert [each.name async for each in objects.listed("")] == ["name"]
    await objects.delete(["name", "another"])
    with pytest.raises(RemoteFailure) as missing:
        await objects.get("name")
    assert missing.value.missing


def test_a_directory_that_cannot_be_made(tmp_path, object_store):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable, match="/file/below cannot be used: Not a directory"):
        RemoteObjects.open(config(tmp_path), f"file://{tmp_path}/file/below")
