"""When a release has no images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tools.release import images
from tools.release.run import CommandFailedError

if TYPE_CHECKING:
    import pytest

DOCKERFILE = Path(__file__).parents[3] / "Dockerfile"


def test_each_image_is_a_stage_of_the_dockerfile():
    text = DOCKERFILE.read_text()
    assert all(f" AS {stage}\n" in text for stage in images.IMAGES)


def test_without_an_engine_the_reason_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert images.why_no_engine() == "there is no docker command here"
    monkeypatch.setattr(shutil, "which", lambda command: command)

    def no_answer(command: list[str], deadline_seconds: float) -> str:
        raise CommandFailedError("docker info: exit code 1\nCannot connect to the Docker daemon")

    monkeypatch.setattr(images, "run", no_answer)
    assert images.why_no_engine() == (
        "no container engine answers: Cannot connect to the Docker daemon"
    )


def test_an_engine_builds_and_saves_both_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    commands: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda command: command)

    def answer(command: list[object], deadline_seconds: float) -> str:
        commands.append(" ".join(map(str, command)))
        return ""

    monkeypatch.setattr(images, "run", answer)
    assert images.why_no_engine() is None
    names = images.build_images("0.2.0", tmp_path)
    assert names == {"taskmanager": "sluice:0.2.0", "spark": "sluice-spark:0.2.0"}
    assert commands[1:] == [
        "docker build --target taskmanager --tag sluice:0.2.0 .",
        f"docker save --output {tmp_path}/sluice-0.2.0.image.tar sluice:0.2.0",
        "docker build --target spark --tag sluice-spark:0.2.0 .",
        f"docker save --output {tmp_path}/sluice-spark-0.2.0.image.tar sluice-spark:0.2.0",
    ]
