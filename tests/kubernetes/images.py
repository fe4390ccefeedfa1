"""Images of the Dockerfile as archives, built when their sources have changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run
from tests.compose.engine import any_engine
from tests.compose.images import REPOSITORY, python_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

from tests.compose.engine import Engine

CHART = "deploy/helm/sluice"
BUILD = REPOSITORY / "build" / "kubernetes"
TARGETS = ("taskmanager", "spark")
_BUILD_SECONDS = 1800
_SAVE_SECONDS = 600
_GIT_SECONDS = 60
_TAG = "kubernetes"
_SOURCES = (
    "Dockerfile",
    "pyproject.toml",
    "hatch_build.py",
    "mypyc.ini",
    "requirements",
    "protocol",
    "transport",
    "shuffle",
    "sluice",
    "spark_integration",
    "docker",
    "tests/vectors",
)
"""The files that the Dockerfile copies, without documentation."""
_LEFT_OUT = {"__pycache__", "target"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image that can be imported.

    Attributes:
        name: Repository and tag.
        archive: What ``docker save`` has written.
    """

    name: str
    archive: Path


@dataclass(frozen=True, slots=True)
class OlderRelease:
    """The chart and image that are upgraded to the current ones.

    Attributes:
        commit: The commit of both.
        image: The image of TaskManagers.
        chart: Directory of the chart; None if there was none yet.
    """

    commit: str
    image: Image
    chart: Path | None


def product_images(root: Path = REPOSITORY, targets: Sequence[str] = TARGETS) -> dict[str, Image]:
    """Return the images of a checkout by target of its Dockerfile; build them if there are none.

    Their tag is a digest of their sources.
    """
    digests = {target: sources_digest(root, target) for target in targets}
    images = {
        target: Image(f"sluice-{target}:{digest}", BUILD / "images" / f"{target}-{digest}.tar")
        for target, digest in digests.items()
    }
    missing = [target for target, image in images.items() if not image.archive.is_file()]
    if not missing:
        return images
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="sluice-images-")))
        (BUILD / "engine").mkdir(parents=True, exist_ok=True)
        engine = undo.enter_context(
            any_engine(directory, f"sluice-images-{os.getpid()}", BUILD / "engine")
        )
        base = python_image(engine, directory, _TAG)
        for target in missing:
            _build(engine, root, target, base, images[target])
    return images


def built_images() -> dict[str, Image]:
    """Return the newest images that were built, even if the checkout has changed.

    Raises:
        ComposeTestFailed: There are none.
    """
    images = {}
    for target in TARGETS:
        archives = list((BUILD / "images").glob(f"{target}-*.tar"))
        if not archives:
            raise ComposeTestFailed(f"no image {target} was built")
        newest = max(archives, key=lambda archive: archive.stat().st_mtime)
        digest = newest.stem.removeprefix(f"{target}-")
        images[target] = Image(f"sluice-{target}:{digest}", newest)
    return images


def older_release(revision: str | None = None) -> OlderRelease:
    """Return chart and image of a commit.

    Args:
        revision: The commit; None: the one before the last change of chart or image.

    Raises:
        ComposeTestFailed: There is no such commit.
    """
    if revision is None:
        revision = _git("log", "-1", "--format=%H", "--", *_SOURCES, CHART) + "^"
    commit = _git("rev-parse", revision)
    root = BUILD / "older" / commit
    if not root.is_dir():
        shutil.rmtree(root.parent, ignore_errors=True)
        root.parent.mkdir(parents=True)
        archive = root.with_suffix(".tar")
        _git("archive", f"--output={archive}", commit)
        partial = root.with_suffix(".partial")
        partial.mkdir()
        run(["tar", "-C", partial, "-xf", archive], timeout_seconds=_GIT_SECONDS)
        archive.unlink()
        # Not a part of the repository, and TaskManagers do not need it.
        jar = "spark_integration/jars/sluice-spark.jar"
        (partial / jar).parent.mkdir(exist_ok=True)
        shutil.copyfile(REPOSITORY / jar, partial / jar)
        partial.rename(root)
    chart = root / CHART
    image = product_images(root, ("taskmanager",))["taskmanager"]
    return OlderRelease(commit[:12], image, chart if chart.is_dir() else None)


def forget_others(images: Sequence[Image]) -> None:
    """Remove the archives of other images."""
    kept = {image.archive for image in images}
    for target in TARGETS:
        for archive in (BUILD / "images").glob(f"{target}-*"):
            if archive not in kept:
                archive.unlink()


def sources_digest(root: Path, target: str) -> str:
    """Return a digest of the files that go into an image, and of their paths.

    The jar only counts for Spark: the other image has it too, but does not use it.
    """
    digest = hashlib.sha256()
    for path in _files(root, _LEFT_OUT if target == "spark" else _LEFT_OUT | {"jars"}):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _files(root: Path, left_out: set[str]) -> Iterator[Path]:
    for name in _SOURCES:
        source = root / name
        if source.is_file():
            yield source
        for folder, folders, names in os.walk(source):
            folders[:] = sorted(set(folders) - left_out)
            for each in sorted(names):
                yield Path(folder) / each


def _build(engine: Engine, root: Path, target: str, base: str, image: Image) -> None:
    print(f"building {image.name}", flush=True)
    engine.docker(
        *("build", "--quiet", "--target", target, "--tag", image.name),
        *("--build-arg", f"PYTHON_IMAGE={base}", root),
        timeout_seconds=_BUILD_SECONDS,
    )
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    partial = image.archive.with_suffix(".partial")
    engine.docker("save", "--output", partial, image.name, timeout_seconds=_SAVE_SECONDS)
    partial.rename(image.archive)


def _git(*arguments: str | Path) -> str:
    command = ["git", "-C", REPOSITORY, *arguments]
    return run(command, timeout_seconds=_GIT_SECONDS).strip()
