"""An image of a single program, written as an archive that ``ctr images import`` reads."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"


def write_image(
    archive: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str]
) -> None:
    """Write an image with one layer.

    The archive has the layout of ``docker save``: a layer, a configuration and a manifest.

    Args:
        archive: Where it goes.
        name: Repository and tag of the image.
        files: Executable files by their path in the image, without a leading slash.
        entrypoint: What a container runs.
    """
    layer = _layer(files)
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
            "history": [{"created": EPOCH}],
        }
    ).encode()
    members = {f"{_sha256(configuration)}.json": configuration, "layer.tar": layer}
    manifest = [
        {"Config": next(iter(members)), "RepoTags": [name], "Layers": ["layer.tar"]},
    ]
    members["manifest.json"] = json.dumps(manifest).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as output:
        for path, content in members.items():
            _add(output, path, content, 0o644)


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as output:
        for path, source in files.items():
            _add(output, path, source.read_bytes(), 0o755)
    return buffer.getvalue()


def _add(output: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    output.addfile(entry, io.BytesIO(content))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
