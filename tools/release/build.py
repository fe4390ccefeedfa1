"""Build everything in a release into ``build/release``, and try its wheels: ``make release``.

    python -m tools.release.build
    python -m tools.release.build --python python3.11 --python python3.12 --tag v0.2.0

A step that this machine cannot do is skipped with its reason; ``--tag`` makes a skipped wheel, and
a changelog that is not ready, an error. The exit code is 0 if everything else was built, and the
wheels for the running Python gave the first job's result in a new environment.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.release import checksums, images, notes
from tools.release.run import ROOT, SUPPLY_CHAIN, CommandFailedError, run
from tools.release.trial import WrongResultError, try_wheels
from tools.release.wheels import (
    Interpreter,
    build_compiled_wheel,
    build_pure_wheel,
    build_sdist,
    find_interpreter,
)

OUTPUT = ROOT / "build" / "release"

_CHECK_SECONDS = 300
_SBOM_SECONDS = 900


def main() -> int:
    """Build, check and try a release; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="compile a wheel for this Python; repeat it (default: the running one)",
    )
    parser.add_argument("--tag", default="", help="release under this tag, such as v0.2.0")
    options = parser.parse_args()
    try:
        for line in build(options.python or [sys.executable], options.tag):
            _say(line)
    except (CommandFailedError, WrongResultError, notes.NotReadyError) as error:
        sys.stderr.write(f"make release: {error}\n")
        return 1
    return 0


def build(pythons: list[str], tag: str) -> list[str]:
    """Build into ``build/release``, replacing an earlier release.

    Args:
        pythons: Commands of the Pythons that get a compiled wheel.
        tag: The tag of the release; empty for a rehearsal.

    Returns:
        The last lines to print: each file, and each step that was skipped.

    Raises:
        CommandFailedError: A step failed.
        WrongResultError: A wheel does not run the first job.
        NotReadyError: The tree may not be released under the tag.
    """
    with (ROOT / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    changelog = notes.CHANGELOG.read_text(encoding="utf-8")
    if tag:
        notes.check_tag(tag, version, changelog, notes.fragments())
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    skipped = _build_distributions(pythons, strict=bool(tag))
    skipped += _build_images_and_sboms(version)
    text = notes.release_notes(version, changelog, notes.draft_of_fragments(version))
    (OUTPUT / "RELEASE_NOTES.md").write_text(text, encoding="utf-8")
    checksums.write_checksums(OUTPUT)
    _try()
    if wrong := checksums.wrong_files(OUTPUT):
        raise CommandFailedError(f"files changed after their checksums: {', '.join(wrong)}")
    files = [f"{path.stat().st_size:>12,} B  {path.name}" for path in sorted(OUTPUT.iterdir())]
    return [f"{OUTPUT.relative_to(ROOT)}:", *files, *(f"Skipped: {line}" for line in skipped)]


def _build_distributions(pythons: list[str], *, strict: bool) -> list[str]:
    """Build sdist and wheels; return what was skipped."""
    _say("Building the sdist and the wheel for any Python")
    sdist = build_sdist(OUTPUT)
    build_pure_wheel(sdist, OUTPUT)
    skipped = []
    for command in pythons:
        found = find_interpreter(command)
        if isinstance(found, Interpreter):
            _say(f"Compiling the wheel for Python {found.version} (minutes, unless it is kept)")
            build_compiled_wheel(sdist, found, OUTPUT)
        elif strict:
            raise CommandFailedError(f"no compiled wheel for {command}: {found}")
        else:
            skipped.append(f"the compiled wheel for {command}: {found}")
    distributions = [*sorted(OUTPUT.glob("*.whl")), sdist]
    python = sys.executable
    run([python, "-m", "twine", "check", "--strict", *distributions],
        deadline_seconds=_CHECK_SECONDS)  # fmt: skip
    return skipped


def _build_images_and_sboms(version: str) -> list[str]:
    """Build the images, then the bills of materials, which list their packages."""
    named = {}
    reason = images.why_no_engine()
    if reason is None:
        _say("Building the images")
        built = images.build_images(version, OUTPUT)
        named = {"SLUICE_IMAGE": built["taskmanager"], "SLUICE_SPARK_IMAGE": built["spark"]}
    _say("Writing the bills of materials")
    run([SUPPLY_CHAIN / "python", "-m", "tools.supply.sbom"],
        deadline_seconds=_SBOM_SECONDS, environment=named)  # fmt: skip
    for path in sorted((ROOT / "build" / "sbom").glob("*.cdx.json")):
        shutil.copyfile(path, OUTPUT / f"sluice-{version}-{path.name}")
    return [] if reason is None else [f"the images: {reason}"]


def _try() -> None:
    """Install the wheels that fit the running Python, and run the first job with each."""
    tag = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    wheels = [(path, "compiled" if tag in path.name else "interpreted")
              for path in sorted(OUTPUT.glob("*.whl"))
              if tag in path.name or path.name.endswith("-none-any.whl")]  # fmt: skip
    _say(f"Trying {len(wheels)} wheels in a new virtual environment (minutes)")
    with tempfile.TemporaryDirectory(prefix="sluice-release-") as directory:
        for line in try_wheels(wheels, Path(directory)):
            _say(line)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
