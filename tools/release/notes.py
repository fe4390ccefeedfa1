"""Write the notes of a release: its section of CHANGELOG.md, and fragments not yet in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.release.run import ROOT, run

CHANGELOG = ROOT / "CHANGELOG.md"
FRAGMENTS = ROOT / "changes"
UNRELEASED = "unreleased"

_SECTION = re.compile(
    r"^## (?P<version>[^,\n]+), (?P<date>.+)\n(?P<text>(?:(?!## ).*\n?)*)", re.MULTILINE
)
_DRAFT_SECONDS = 120


class NotReadyError(Exception):
    """The tree is not the one of the tag that it should be released as."""


def fragments(directory: Path = FRAGMENTS) -> list[Path]:
    """Return the fragments that `make changelog` has not gathered."""
    return sorted(path for path in directory.glob("*.md") if path.name != "README.md")


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """Return the date and the text of a version's section, or None without one."""
    for found in _SECTION.finditer(changelog):
        if found["version"] == version:
            return found["date"].strip(), found["text"].strip()
    return None


def check_tag(tag: str, version: str, changelog: str, left: list[Path]) -> None:
    """Check that a tree may be released under a tag.

    Args:
        tag: For example ``v0.2.0``.
        version: The version in pyproject.toml.
        changelog: The text of CHANGELOG.md.
        left: The fragments outside of it.

    Raises:
        NotReadyError: It may not be; the message says what to do.
    """
    if tag != f"v{version}":
        raise NotReadyError(
            f"the tag is {tag} and pyproject.toml has version {version}: tag the commit that sets"
            f" the version, as v{version}"
        )
    if left:
        names = ", ".join(path.name for path in left)
        raise NotReadyError(
            f"changes/ has {len(left)} fragments outside CHANGELOG.md ({names}): run"
            f" `make changelog VERSION={version}` and commit its result"
        )
    found = section(changelog, version)
    if found is None or found[0] == UNRELEASED:
        raise NotReadyError(
            f"CHANGELOG.md has no dated section for {version}: its heading is"
            f" `## {version}, YYYY-MM-DD`"
        )


def release_notes(version: str, changelog: str, draft: str = "") -> str:
    """Compose the notes.

    Args:
        version: The version of the release.
        changelog: The text of CHANGELOG.md.
        draft: What `make changelog` would add to it.
    """
    date, text = section(changelog, version) or (UNRELEASED, "")
    parts = [f"# Sluice {version}, {date}", draft.strip(), text]
    return "\n\n".join(part for part in parts if part) + "\n"


def draft_of_fragments(version: str) -> str:
    """Return what `make changelog` would write for the fragments, without its heading."""
    if not fragments():
        return ""
    towncrier = Path(sys.executable).with_name("towncrier")
    drafted = run([towncrier, "build", "--draft", "--version", version],
                  deadline_seconds=_DRAFT_SECONDS)  # fmt: skip
    return drafted.partition(f"## {version}, ")[2].partition("\n")[2].strip()
