"""Images for the stack: pulled where that is possible, made on this machine where it is not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run

if TYPE_CHECKING:
    from tests.compose.engine import Engine

REPOSITORY = Path(__file__).resolve().parents[2]

_PULL_SECONDS = 120
_BOOTSTRAP_SECONDS = 900
_BUILD_SECONDS = 900
_RELEASE = "bookworm"
_PACKAGES = ("python3", "python3-venv", "ca-certificates", "netbase", "tzdata")
_OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_SOURCES = "opt/sources"
_DEFAULT_IMAGE = re.compile(r"\$\{(PYTHON_IMAGE|PROMETHEUS_IMAGE):-([^}]+)\}")


def image_names(engine: Engine, directory: Path, tag: str) -> dict[str, str]:
    """Values for the image variables of docker-compose.yml.

    With an engine of the machine's own, the public images and their usual names for what they are
    built into, tagged with ``tag``. With a private one that cannot pull: images made here.
    """
    names = {"SLUICE_IMAGE": f"sluice:{tag}", "SLUICE_SPARK_IMAGE": f"sluice-spark:{tag}"}
    public = public_images()
    base, prometheus = python_image(engine, directory, tag), f"prometheus-local:{tag}"
    if base == public["PYTHON_IMAGE"]:
        return names | public
    context = REPOSITORY / "tests" / "compose"
    engine.docker(
        *("build", "--quiet", "--tag", prometheus, "--build-arg", f"PYTHON_IMAGE={base}"),
        *("--file", context / "prometheus.Dockerfile", context),
        timeout_seconds=_BUILD_SECONDS,
    )
    return {**names, "PYTHON_IMAGE": base, "PROMETHEUS_IMAGE": prometheus}


def python_image(engine: Engine, directory: Path, tag: str) -> str:
    """Return the name of the image that the Dockerfile begins with.

    The public one, unless the engine is a private one that cannot pull: then one that is made below
    ``directory``, or that the engine has from an earlier time.
    """
    public = public_images()["PYTHON_IMAGE"]
    if not engine.private:
        return public
    local = f"python-local:{tag}"
    if engine.docker("images", "--quiet", local).strip():
        return local
    if _pulled(engine, public):
        return public
    print("no image can be pulled: making a base image out of Debian packages", flush=True)
    _make_base_image(engine, directory / "rootfs", local)
    return local


def public_images() -> dict[str, str]:
    """The public images that docker-compose.yml names, with their digests, by variable."""
    return dict(_DEFAULT_IMAGE.findall((REPOSITORY / "docker-compose.yml").read_text()))


def _pulled(engine: Engine, image: str) -> bool:
    try:
        engine.docker("pull", "--quiet", image, timeout_seconds=_PULL_SECONDS)
    except ComposeTestFailed:
        return False
    return True


def _make_base_image(engine: Engine, root: Path, name: str) -> None:
    """Import a Debian with its Python 3.11, and with this machine's ways to packages.

    Those are: where apt gets its packages, certificates that the machine trusts beyond Debian's,
    and PySpark's source distribution, hundreds of megabytes that pip keeps from an earlier
    installation. It has the SHA-256 of the lock file, a wheel made of it here would not.
    """
    sources, mirror = _apt_sources()
    # A mount namespace of its own: what debootstrap mounts ends with it.
    run(
        [
            *("unshare", "--mount", "debootstrap", "--variant=minbase"),
            *(f"--include={','.join(_PACKAGES)}", _RELEASE, root, mirror),
        ],
        timeout_seconds=_BOOTSTRAP_SECONDS,
    )
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    shutil.copy(sources, root / "etc/apt" / _sources_place(sources))
    if _OWN_CERTIFICATES.is_dir():
        shutil.copytree(
            _OWN_CERTIFICATES, root / "usr/local/share/ca-certificates", dirs_exist_ok=True
        )
        run(["chroot", root, "update-ca-certificates"], timeout_seconds=_PULL_SECONDS)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    requirement = root.with_suffix(".txt")
    requirement.write_text(_locked("pyspark"))
    run(
        [
            *(REPOSITORY / ".venv/bin/pip", "download", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--require-hashes", "--requirement", requirement),
            *("--dest", root / _SOURCES),
        ],
        timeout_seconds=_BUILD_SECONDS,
    )
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    archive = root.with_suffix(".tar")
    run(
        ["tar", "--one-file-system", "-C", root, "-cf", archive, "."],
        timeout_seconds=_PULL_SECONDS,
    )
    shutil.rmtree(root)
    engine.docker(
        "import",
        *("--change", "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"),
        *("--change", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"),
        *("--change", f"ENV PIP_FIND_LINKS=/{_SOURCES}"),
        *(archive, name),
        timeout_seconds=_BUILD_SECONDS,
    )
    archive.unlink()


def _locked(name: str) -> str:
    """The lines of a distribution in the lock file: its version and its hashes."""
    lock = (REPOSITORY / "requirements" / "spark.txt").read_text()
    found = re.search(rf"^{name}==.*(?:\n .*)*\n", lock, re.MULTILINE)
    if found is None:
        raise ComposeTestFailed(f"requirements/spark.txt pins no {name}: run `make constraints`")
    return found[0]


def _apt_sources() -> tuple[Path, str]:
    """The machine's list of Debian package sources, and the first mirror in it."""
    listing = Path("/etc/apt/sources.list.d/debian.sources")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("URIs:"):
                return listing, line.split()[1]
    listing = Path("/etc/apt/sources.list")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("deb "):
                return listing, next(word for word in line.split() if "://" in word)
    raise ComposeTestFailed(
        "this machine names no Debian package source, so no base image can be made: run the test on"
        f" Debian 12, or with an engine that can pull {public_images()['PYTHON_IMAGE']}"
    )


def _sources_place(sources: Path) -> str:
    return "sources.list" if sources.name == "sources.list" else f"sources.list.d/{sources.name}"
