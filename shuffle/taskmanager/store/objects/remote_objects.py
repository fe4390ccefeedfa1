"""Objects in a bucket or a directory; the only module that uses ``obstore``.

``obstore`` retries requests that fail with a server error, including throttling, with exponential
backoff and jitter. The remaining errors become :class:`.RemoteFailure`.
"""

import asyncio
import configparser
import datetime
import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from .....transport.trusted_path import UntrustedPath, require_trusted
from ..errors import StorageError, StorageUnavailable
from .remote_directory import Identity, identity_of, remove_files
from .remote_failure import RemoteFailure, failure_in_words

if TYPE_CHECKING:
    from ...config.storage_config import StorageConfig

T = TypeVar("T")

DELETE_BATCH: Final = 1000
"""Maximum number of objects that S3 deletes in one request."""

_DIRECTORY: Final = "file://"

_GRACE: Final = 1.5
"""A request is canceled after this many times its deadline, because a hung file system ignores
deadlines."""


class RemoteObject(NamedTuple):
    """An object in a listing."""

    name: str
    size: int
    modified: datetime.datetime


class RemoteObjects:
    """The objects below a URL. Names are relative to it.

    Args:
        store: An ``obstore`` store.
        url: For messages.
        timeout_seconds: Deadline of a request, including retries.
    """

    def __init__(self, store: Any, url: str, timeout_seconds: float) -> None:
        self._obstore: Any = importlib.import_module("obstore")
        self._store = store
        self.url = url
        self.is_directory = url.startswith(_DIRECTORY)
        """Whether the objects are files below a directory, and not in a bucket."""
        self._timeout_seconds = timeout_seconds
        self.requests = 0
        """Number of requests; all these counters only grow."""
        self.errors = 0
        """Requests that failed after all retries."""
        self.read_bytes = 0
        """Bytes read from ranges of objects."""
        self.written_bytes = 0
        """Bytes of regions written."""

    @classmethod
    def open(cls, config: "StorageConfig", url: str) -> "RemoteObjects":
        """Create the client without sending a request.

        Raises:
            StorageUnavailable: ``obstore`` is not installed, or the directory cannot be created.
        """
        try:
            stores: Any = importlib.import_module("obstore.store")
        except ImportError as error:
            raise StorageUnavailable(
                url, "obstore is not installed", "pip install sluice-shuffle[remote]"
            ) from error
        if url.startswith(_DIRECTORY):
            store = _open_directory(stores, url)
        else:
            store = _open_bucket(stores, url, config)
        return cls(store, url, config.remote_timeout_seconds)

    @property
    def deadline_seconds(self) -> float:
        """Time after which a request is canceled."""
        return _GRACE * self._timeout_seconds

    async def put(self, name: str, data: bytes | bytearray, *, new: bool = False) -> None:
        """Store an object in one request.

        Args:
            name: Name of the object.
            data: Must not change until the call has ended.
            new: Whether to fail if an object with that name exists, instead of replacing it.

        Raises:
            RemoteFailure: The object was not stored.
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
            name: Name of the object.
            parts: Each part except the last has ``part_bytes``. If it raises, the upload is undone.
            part_bytes: Size of a part.
            parallel: Parts sent at a time.

        Raises:
            RemoteFailure: The object was not stored.

        Cancellation: leaves parts behind in the store, so let ``parts`` raise instead.
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
        except StorageError:  # raised by parts
            raise
        except Exception as error:  # noqa: BLE001 - a bug fails the request, too
            raise self._failure(error) from None

    async def get_range(self, name: str, start: int, length: int) -> memoryview:
        """Read a range of an object; the result is shorter if the object ends before.

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
            RemoteFailure: The copy failed.
        """
        await self._request(self._obstore.copy_async(self._store, name, to))

    async def modified(self, name: str) -> datetime.datetime:
        """Return when an object was written, by the store's clock.

        Raises:
            RemoteFailure: The request failed, or the object does not exist.
        """
        found = await self._request(self._obstore.head_async(self._store, name))
        modified: datetime.datetime = found["last_modified"]
        return modified

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and ignore missing ones.

        Raises:
            RemoteFailure: Some objects may not be deleted.
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
            for name in names:  # a file system stops at the first missing object
                await self._delete([name])

    async def listed(self, prefix: str) -> AsyncGenerator[RemoteObject]:
        """List objects page by page.

        Raises:
            RemoteFailure: The listing failed.
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
        """Return the distinct next name parts below a prefix.

        Raises:
            RemoteFailure: They cannot be listed.
        """
        found = await self._request(
            self._obstore.list_with_delimiter_async(self._store, prefix=prefix)
        )
        return [str(each).rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

    async def identity(self) -> Identity:
        """Return the identity of a remote directory.

        Raises:
            RemoteFailure: It cannot be examined.
        """
        path = self.url.removeprefix(_DIRECTORY)
        return await self._request(asyncio.to_thread(identity_of, path))

    async def remove_unfinished(
        self,
        prefix: str,
        before: datetime.datetime,
        is_live: Callable[[str], bool] = lambda name: False,
    ) -> int:
        """Remove incomplete files of dead processes; return their number.

        Listings do not show them. In S3 a lifecycle rule does it (``docs/operate/remote.md``).

        Args:
            prefix: The directory to search.
            before: Younger files stay.
            is_live: Whether the object with this last part of a name is being written.
        """
        if not self.is_directory:
            return 0
        top = Path(self.url.removeprefix(_DIRECTORY)) / prefix
        return await remove_files(top, before.timestamp(), is_live)

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


def _open_directory(stores: Any, url: str) -> Any:
    path = Path(url.removeprefix("file://"))
    try:
        require_trusted(path, 0o700, private=True)
        return stores.LocalStore(prefix=path, automatic_cleanup=True)
    except UntrustedPath as error:
        raise StorageUnavailable(url, error.reason, error.remedy) from error
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
"""Time after which the credentials file is read again."""


def file_credentials(names: "os._Environ[str] | dict[str, str]") -> Callable[[], Any] | None:
    """Return a function that reads the shared credentials file, if it is used.

    Credentials in the environment take precedence. Without a file, ``obstore`` requests credentials
    of a web identity, of the container, and of the instance.

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
