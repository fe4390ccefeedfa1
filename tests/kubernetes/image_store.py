"""Images unpacked once, in a store that each node's containerd gets as hard links."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import run
from tests.kubernetes.images import BUILD
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kubernetes.images import Image

_STORES = BUILD / "stores"
_START_SECONDS = 60
_IMPORT_SECONDS = 900
_COPY_SECONDS = 300
_CONFIG = """
version = 2
root = "{root}"
state = "{directory}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{directory}/socket"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
"""


def image_store(images: Sequence[Image]) -> Path:
    """Return the directory of a stopped containerd that has these images.

    It is kept for the next run with the same images; other directories are removed.
    """
    contents = "".join(f"{image.name} {image.archive.stat().st_mtime_ns}\n" for image in images)
    store = _STORES / hashlib.sha256(contents.encode()).hexdigest()[:12]
    if store.is_dir():
        return store
    shutil.rmtree(_STORES, ignore_errors=True)
    _STORES.mkdir(parents=True)
    partial = store.with_suffix(".partial")
    with tempfile.TemporaryDirectory(prefix="sluice-store-") as name:
        directory = Path(name)
        config = directory / "config.toml"
        config.write_text(_CONFIG.format(root=partial, directory=directory))
        with ManagedProcess(
            "containerd of the image store",
            ("setpriv", "--pdeathsig", "KILL", "containerd", f"--config={config}"),
            log_path=directory / "log",
            environment=os.environ,
            directory=directory,
        ) as containerd:
            containerd.wait_for_line(re.compile("containerd successfully booted"), _START_SECONDS)
            command = ("ctr", f"--address={directory / 'socket'}", "--namespace=k8s.io")
            for image in images:
                print(f"unpacking {image.name}", flush=True)
                run([*command, "images", "import", image.archive], timeout_seconds=_IMPORT_SECONDS)
    partial.rename(store)
    return store


def copy_store(store: Path, target: Path) -> None:
    """Make a copy of a store for another containerd.

    Files of layers are never written to, so they are hard links; only databases are copied.
    """
    run(["cp", "--archive", "--link", store, target], timeout_seconds=_COPY_SECONDS)
    for database in target.rglob("*.db"):
        if "snapshots" not in database.relative_to(target).parts:
            content = database.read_bytes()
            database.unlink()
            database.write_bytes(content)
