"""Objects of a bucket or of a directory, through ``obstore``: the only module that knows it.

``obstore`` repeats requests that fail with a server's error, throttling included, at random
intervals that grow. An error that is left becomes a :class:`RemoteFailure`, whose text is made of
known phrases only: what a server answers may repeat parts of a credential.
"""

import asyncio
import configparser
import contextlib
import datetime
import importlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..errors import StorageError, StorageUnavailable

if TYPE_CHECKING:
    from ...config.sections import StorageConfig

T = TypeVar("T")

DELETE_BATCH: Final = 1000
"""Most objects that S3 deletes in one request."""

_GRACE: Final = 1.5
"""So many times its deadline a request may take before it is given up from here: a hung file
system does not know deadlines."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{3,40})</Code>")
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")
_UNFINISHED: Final = re.compile(r".+#\d+")
"""How ``obstore`` names a file until it is whole."""

_NO_ROOM: Final = frozenset({28, 122})
_PHRASES: Final = (
    ("Connection refused", "connection refused"),
    ("dns error", "its host name is not known"),
    ("timed out", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("certificate", "its certificate is not trusted"),
    ("error sending request", "connection failed"),
    ("error decoding response body", "the answer broke off"),
    ("request or response body error", "the answer broke off"),
    ("IncompleteMessage", "the answer broke off"),
    ("missing", "credentials or settings are missing"),
    ("Requested range was invalid", "the object is shorter"),
    ("credentials", "no credentials"),
    ("Token", "no credentials"),
)


class RemoteFailure(Exception):
    """A request failed. The text is fit for logs.

    Attributes:
        missing: There is no such object.
        full: There is no room.
        exists: An object of that name is there already.
    """

    def __init__(
        self, reason: str, *, missing: bool = False, full: bool = False, exists: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing
        self.full = full
        self.exists = exists


class RemoteObject(NamedTuple):
    """An object of a listing."""

    name: str
    size: int
    modified: datetime.datetime


class RemoteObjects:
    """The objects below a URL. Names are relative to it.

    Args:
        store: An ``obstore`` store.
        url: For messages.
        timeout_seconds: Deadline of a request, repetitions included.
    """

    def __init__(self, store: Any, url: str, timeout_seconds: float) -> None:
        self._obstore: Any = importlib.import_module("obstore")
        self._store = store
        self.url = url
        self._timeout_seconds = timeout_seconds
        self.requests = 0
        """Requests; only grows, as all of these do."""
        self.errors = 0
        """Requests that failed, repetitions included."""
        self.read_bytes = 0
        """Bytes of ranges that were read."""
        self.written_bytes = 0
        """Bytes of regions that were written."""

    @classmethod
    def open(cls, config: "StorageConfig", url: str) -> "RemoteObjects":
        """Make the client; nothing is sent yet.

        Raises:
            StorageUnavailable: ``obstore`` is not installed, or the directory cannot be made.
        """
        try:
            stores: Any = importlib.import_module("obstore.store")
        except ImportError as error:
            raise StorageUnavailable(
                url, "obstore is not installed", "pip install sluice-shuffle[remote]"
            ) from error
        if url.startswith("file://"):
            store = _open_directory(stores, url)
        else:
            store = _open_bucket(stores, url, config)
        return cls(store, url, config.remote_timeout_seconds)

    @property
    def deadline_seconds(self) -> float:
        """Time after which a request is given up in any case."""
        return _GRACE * self._timeout_seconds

    async def put(self, name: str, data: bytes | bytearray, *, new: bool = False) -> None:
        """Store an object in one request.

        Args:
            name: Of the object.
            data: Must not change until the call has ended.
            new: Whether an object of that name is left as it is.

        Raises:
            RemoteFailure: It is not stored; with ``new`` perhaps because there is one.
        """
        mode = "create" if new else "overwrite"
        await self._request(
            self._obstore.put_async(self._store, name, data, use_multipart=False, mode=mode)
        )

    async def put_parts(
        self, name: str, parts: AsyncIterator[bytearray], part_bytes: int, parallel: int
    ) -> None:
        """Store an object part by part.

        Args:
            name: Of the object.
            parts: Each but the last one has ``part_bytes``. If it raises, the upload is taken back.
            part_bytes: Size of a part.
            parallel: Parts under way at a time.

        Raises:
            RemoteFailure: It is not stored.

        Cancellation: leaves parts behind in the store, so do not cancel: let ``parts`` raise.
        """
        self.requests += 1
        try:
            await self._obstore.put_async(
                self._store,
                name,
                parts,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parallel,
            )
        except StorageError:  # of the parts
            raise
        except Exception as error:  # noqa: BLE001 - a bug fails the request, too
            raise self._failure(error) from None

    async def get_range(self, name: str, start: int, length: int) -> memoryview:
        """Read a part of an object; it may be shorter at the object's end.

        Raises:
            RemoteFailure: It cannot be read.
        """
        data = memoryview(
            await self._request(
                self._obstore.get_range_async(self._store, name, start=start, length=length)
            )
        )
        self.read_bytes += len(data)
        return data

    async def get(self, name: str) -> bytes:
        """Read a whole small object.

        Raises:
            RemoteFailure: It cannot be read.
        """

        async def read() -> bytes:
            result = await self._obstore.get_async(self._store, name)
            return bytes(await result.bytes_async())

        return await self._request(read())

    async def copy(self, name: str, to: str) -> None:
        """Copy an object within the store.

        Raises:
            RemoteFailure: It is not copied.
        """
        await self._request(self._obstore.copy_async(self._store, name, to))

    async def modified(self, name: str) -> datetime.datetime:
        """Return when an object was written, by the store's clock.

        Raises:
            RemoteFailure: That is not known.
        """
        found = await self._request(self._obstore.head_async(self._store, name))
        modified: datetime.datetime = found["last_modified"]
        return modified

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; one that is not there is no error.

        Raises:
            RemoteFailure: Some may be left.
        """
        for first in range(0, len(names), DELETE_BATCH):
            await self._delete(list(names[first : first + DELETE_BATCH]))

    async def _delete(self, names: list[str]) -> None:
        try:
            await self._request(self._obstore.delete_async(self._store, names))
        except RemoteFailure as failure:
            if not failure.missing or len(names) == 1:
                if not failure.missing:
                    raise
                return
            for name in names:  # a file system stops at the first one that is not there
                await self._delete([name])

    async def listed(self, prefix: str) -> AsyncGenerator[RemoteObject]:
        """List objects, some at a time.

        Raises:
            RemoteFailure: The listing broke off.
        """
        stream = self._obstore.list(self._store, prefix=prefix or None, chunk_size=1000)
        pages = stream.__aiter__()
        while True:
            try:
                page = await self._request(_next_page(pages))
            except StopAsyncIteration:
                return
            if page is None:
                return
            for each in page:
                yield RemoteObject(each["path"], each["size"], each["last_modified"])

    async def parts_below(self, prefix: str) -> list[str]:
        """Return the next parts of the names below a prefix.

        Raises:
            RemoteFailure: They cannot be listed.
        """
        found = await self._request(
            self._obstore.list_with_delimiter_async(self._store, prefix=prefix)
        )
        return [str(each).rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

    async def remove_unfinished(self, prefix: str, before: datetime.datetime) -> int:
        """Remove files that were written in part, by processes that are gone; return their number.

        No listing shows them. S3 has a rule for what it has in their place, see
        ``docs/operate/remote.md``.
        """
        if not self.url.startswith("file://"):
            return 0
        top = Path(self.url.removeprefix("file://")) / prefix
        return await asyncio.to_thread(_remove_unfinished, top, before.timestamp())

    async def _request(self, request: Coroutine[Any, Any, T]) -> T:
        self.requests += 1
        try:
            async with asyncio.timeout(self.deadline_seconds):
                return await request
        except TimeoutError:
            self.errors += 1
            raise RemoteFailure(f"no answer within {self.deadline_seconds:g} s") from None
        except Exception as error:  # noqa: BLE001 - a bug fails the request, too
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> RemoteFailure:
        failure = failure_in_words(error)
        if not failure.missing and not failure.exists:
            self.errors += 1
        return failure


async def _next_page(pages: Any) -> list[Any] | None:
    try:
        page: list[Any] = await pages.__anext__()
    except StopAsyncIteration:
        return None
    return page


def _remove_unfinished(top: Path, before: float) -> int:
    removed = 0
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            with contextlib.suppress(OSError):  # others remove them too
                if _UNFINISHED.fullmatch(name) and path.stat().st_mtime < before:
                    path.unlink()
                    removed += 1
    return removed


def failure_in_words(error: Exception) -> RemoteFailure:
    """Say in known phrases what went wrong; no text of the server is repeated."""
    if isinstance(error, RemoteFailure):
        return error
    kind, text = type(error).__name__, str(error)
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
        return RemoteFailure("there is no such object", missing=True)
    if kind == "AlreadyExistsError":
        return RemoteFailure("there is such an object already", exists=True)
    number = _OS_ERROR.search(text)
    if number is not None:
        reason = os.strerror(int(number[1]))
        return RemoteFailure(reason, full=int(number[1]) in _NO_ROOM)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None or code is not None:
        words = [each for each in (status and f"status {status[1]}", code and code[1]) if each]
        missing = (
            status is not None and status[1] == "404" and (code is None or code[1] == "NoSuchKey")
        )
        full = code is not None and code[1] in ("XMinioStorageFull", "QuotaExceeded")
        return RemoteFailure("it answers " + ", ".join(words), missing=missing, full=full)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return RemoteFailure("the credentials are not accepted")
    for phrase, words_ in _PHRASES:
        if phrase in text:
            return RemoteFailure(words_)
    return RemoteFailure(kind)


def _open_directory(stores: Any, url: str) -> Any:
    path = Path(url.removeprefix("file://"))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return stores.LocalStore(prefix=path, automatic_cleanup=True)
    except Exception as error:  # noqa: BLE001 - obstore has no common base
        raise StorageUnavailable(url, failure_in_words(error).reason) from None


def _open_bucket(stores: Any, url: str, config: "StorageConfig") -> Any:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    settings: dict[str, Any] = {}
    endpoint = (
        config.remote_endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or ""
    )
    if endpoint:
        settings["endpoint"] = endpoint
    if not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        settings["region"] = "us-east-1"
    seconds = datetime.timedelta(seconds=config.remote_timeout_seconds)
    try:
        return stores.S3Store(
            bucket,
            prefix=prefix or None,
            config=settings,
            client_options={
                "timeout": seconds,
                "connect_timeout": min(seconds, datetime.timedelta(seconds=5)),
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={
                "max_retries": 10,
                "retry_timeout": seconds,
                "backoff": {
                    "init_backoff": datetime.timedelta(milliseconds=100),
                    "max_backoff": datetime.timedelta(seconds=5),
                    "base": 2,
                },
            },
            credential_provider=file_credentials(os.environ),
        )
    except Exception as error:  # noqa: BLE001 - obstore has no common base
        raise StorageUnavailable(url, failure_in_words(error).reason) from None


CREDENTIALS_KEPT: Final = datetime.timedelta(minutes=5)
"""Time after which the file of credentials is read again."""


def file_credentials(names: "os._Environ[str] | dict[str, str]") -> Callable[[], Any] | None:
    """Return a function that reads the shared credentials file, if that is where they are.

    The environment comes first, and without a file ``obstore`` asks for those of a web identity,
    of the container, and of the instance.

    Args:
        names: The process environment.
    """
    if "AWS_ACCESS_KEY_ID" in names or "AWS_WEB_IDENTITY_TOKEN_FILE" in names:
        return None
    given = names.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(given) if given else Path("~/.aws/credentials").expanduser()
    profile = names.get("AWS_PROFILE", "default")
    if not path.is_file() or not _read_profile(path, profile):
        return None

    def provide() -> dict[str, Any]:
        section = _read_profile(path, profile)
        now = datetime.datetime.now(datetime.UTC)
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token"),
            "expires_at": now + CREDENTIALS_KEPT,
        }

    return provide


def _read_profile(path: Path, profile: str) -> dict[str, str]:
    """Return a profile of a credentials file; empty if it has no pair of keys."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
        section = dict(parser[profile])
    except (KeyError, OSError, configparser.Error, UnicodeDecodeError):
        return {}
    return section if {"aws_access_key_id", "aws_secret_access_key"} <= section.keys() else {}
