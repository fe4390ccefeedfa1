"""Settings for a temporary TaskManager: free ports, and directories that are removed at the end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from ....transport.config import LOOPBACK, TransportConfig
from ..config.http_config import HttpConfig
from ..config.storage_config import StorageConfig
from ..config.taskmanager_config import TaskManagerConfig
from ..store.errors import StorageUnavailable

_MEMORY_FILES: Final = Path("/dev/shm")  # noqa: S108 - the directory below it is made private
_MEMORY_TIER_BYTES: Final = 64 * 1024 * 1024


@contextmanager
def temporary_config() -> Iterator[TaskManagerConfig]:
    """Make settings with free ports of the loopback and temporary directories, removed at the end.

    The memory tier has 64 MiB where there is a ``/dev/shm``, and none elsewhere.

    Raises:
        StorageUnavailable: There is no temporary directory to write to.
    """
    with ExitStack() as stack:
        try:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-embedded-"))
        except OSError as error:
            raise StorageUnavailable(
                os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only named
                error.strerror or str(error),
                "Set TMPDIR to a directory that can be written, or give a configuration",
            ) from error
        storage = StorageConfig(
            data_directories=(Path(data),), memory_directory=None, memory_tier_bytes=0
        )
        if _MEMORY_FILES.is_dir():
            memory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sluice-embedded-", dir=_MEMORY_FILES)
            )
            storage = StorageConfig(
                data_directories=(Path(data),),
                memory_directory=Path(memory),
                memory_tier_bytes=_MEMORY_TIER_BYTES,
            )
        yield TaskManagerConfig(
            transport=TransportConfig(bind_host=(LOOPBACK,), data_port=0),
            storage=storage,
            http=HttpConfig(http_host=(LOOPBACK,), http_port=0),
        )
