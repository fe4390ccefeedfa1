"""Names of objects in the remote tier, without any I/O.

::

    applications/APPLICATION                       touched by TaskManagers that have data of it here
    taskmanagers/TASKMANAGER                       touched by its TaskManager
    regions/TASKMANAGER/APPLICATION/NUMBER         a region that this TaskManager wrote
    moved/APPLICATION/SHUFFLE/ATTEMPT/manifest     a map output that moved here
    moved/APPLICATION/SHUFFLE/ATTEMPT/MOVE-REGION  a region of it

Objects below ``regions`` belong to one TaskManager, and while the application lives, only this
TaskManager removes them. Objects below ``moved`` belong to the application: any TaskManager finds
them by name and serves them.
"""

import hashlib
import re
from typing import Final

from ....names import MapAttemptKey, ShuffleKey

APPLICATIONS: Final = "applications"
TASKMANAGERS: Final = "taskmanagers"
REGIONS: Final = "regions"
MOVED: Final = "moved"

_MAX_NAME: Final = 200
"""Longest part of a name: file systems have 255 bytes, and S3 has 1024 for all parts together."""

_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9._-]")


def name_of_application(application_id: str) -> str:
    """Return an application's part of object names; a long one ends in a hash."""
    raw = application_id.encode("utf-8", "surrogatepass")
    safe = _UNSAFE.sub(lambda match: b"=%02X" % match[0][0], raw).decode("ascii")
    if not safe or safe.startswith("."):
        safe = "=" + safe  # "." and ".." are no names
    if len(safe) <= _MAX_NAME:
        return safe
    digest = hashlib.sha256(raw).hexdigest()
    return f"{safe[: _MAX_NAME - len(digest) - 1]}={digest}"


def application_marker(application_name: str) -> str:
    """Name the marker that shows when a TaskManager last had an application's data."""
    return f"{APPLICATIONS}/{application_name}"


def taskmanager_marker(taskmanager_id: str) -> str:
    """Name the marker from which a TaskManager reads the remote store's time."""
    return f"{TASKMANAGERS}/{taskmanager_id}"


def region_name(application_id: str, taskmanager_id: str, number: int) -> str:
    """Name a region of a TaskManager."""
    return f"{REGIONS}/{taskmanager_id}/{name_of_application(application_id)}/{number:016x}"


def moved_application(application_id: str) -> str:
    """Name the prefix of all moved map outputs of an application."""
    return f"{MOVED}/{name_of_application(application_id)}"


def moved_shuffle(key: ShuffleKey) -> str:
    """Name the prefix of all moved map outputs of a shuffle."""
    return f"{moved_application(key.application_id)}/{key.shuffle_id}"


def attempt_in(name: str, prefix: str) -> int | None:
    """Return the map attempt in a name below :func:`moved_shuffle`, or None for a foreign name."""
    part = name.removeprefix(prefix + "/").partition("/")[0]
    try:
        return int(part)
    except ValueError:
        return None


def moved_output(attempt: MapAttemptKey) -> str:
    """Name the prefix of a moved map output."""
    return f"{moved_shuffle(attempt.shuffle)}/{attempt.map_attempt_id}"


def manifest_name(attempt: MapAttemptKey) -> str:
    """Name the manifest of a map output."""
    return f"{moved_output(attempt)}/manifest"


def moved_region(attempt: MapAttemptKey, move: str, region: int) -> str:
    """Name a region of a moved map output; ``move`` distinguishes attempts."""
    return f"{moved_output(attempt)}/{move}-{region}"


def number_in(part: str) -> int | None:
    """Return the number at the end of a region's name, or None for a foreign name."""
    try:
        return int(part, 16) if len(part) == 2 * 8 else None
    except ValueError:
        return None


def remote_tier_id(url: str) -> bytes:
    """Return the id of a remote tier in journal rows, longer than an arena's id."""
    return b"r" + hashlib.sha256(url.encode()).digest()[:8]
