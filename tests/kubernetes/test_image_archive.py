"""Images of a single program."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING

from tests.kubernetes.image_archive import write_image

if TYPE_CHECKING:
    from pathlib import Path


def test_an_archive_has_what_docker_save_writes(tmp_path: Path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    archive = tmp_path / "images" / "program.tar"
    write_image(archive, "name:1", {"bin/program": program}, ["/bin/program"])
    with tarfile.open(archive) as opened:
        members = {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]
    (manifest,) = json.loads(members["manifest.json"])
    assert manifest["RepoTags"] == ["name:1"]
    configuration = json.loads(members[manifest["Config"]])
    (layer,) = manifest["Layers"]
    digest = hashlib.sha256(members[layer]).hexdigest()
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert configuration["config"]["Entrypoint"] == ["/bin/program"]


def test_programs_can_be_run(tmp_path: Path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    archive = tmp_path / "program.tar"
    write_image(archive, "name:1", {"program": program}, ["/program"])
    with (
        tarfile.open(archive) as opened,
        tarfile.open(fileobj=opened.extractfile("layer.tar")) as layer,
    ):
        (member,) = layer.getmembers()
    assert (member.name, member.mode, member.size) == ("program", 0o755, 4)


def test_the_same_program_gives_the_same_archive(tmp_path: Path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    archives = [tmp_path / name for name in ("a", "b")]
    for archive in archives:
        write_image(archive, "name:1", {"program": program}, ["/program"])
    assert archives[0].read_bytes() == archives[1].read_bytes()
