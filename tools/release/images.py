"""Build the images of a release, if a container engine answers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tools.release.run import CommandFailedError, run

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = {"taskmanager": "sluice", "spark": "sluice-spark"}
"""The stages of the Dockerfile, and the names of their images."""

_ANSWER_SECONDS = 20
_BUILD_SECONDS = 3600
_SAVE_SECONDS = 900


def why_no_engine() -> str | None:
    """Return the reason why images cannot be built, or None if an engine answers."""
    if shutil.which("docker") is None:
        return "there is no docker command here"
    try:
        # Without --format the exit code is 0 even if only the client answers.
        run(["docker", "info", "--format", "{{.ServerVersion}}"], deadline_seconds=_ANSWER_SECONDS)
    except CommandFailedError as error:
        return f"no container engine answers: {error.reason}"
    return None


def build_images(version: str, output: Path) -> dict[str, str]:
    """Build both images and save each as a file that ``docker load`` reads.

    Returns:
        The tagged name of each image, by its stage.

    Raises:
        CommandFailedError: A build failed.
    """
    names = {stage: f"{name}:{version}" for stage, name in IMAGES.items()}
    for stage, name in names.items():
        build = ["docker", "build", "--target", stage, "--tag", name, "."]
        run(build, deadline_seconds=_BUILD_SECONDS)
        path = output / f"{IMAGES[stage]}-{version}.image.tar"
        run(["docker", "save", "--output", path, name], deadline_seconds=_SAVE_SECONDS)
    return names
