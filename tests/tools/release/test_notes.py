"""The notes of a release, and what a tag requires."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.release import notes
from tools.release.notes import NotReadyError, check_tag, fragments, release_notes, section

CHANGELOG = """# Changelog

## 0.2.0, 2027-03-01

### Added

- Second.

## 0.1.0, unreleased

- First.
"""


def test_a_section_ends_at_the_next_version():
    assert section(CHANGELOG, "0.2.0") == ("2027-03-01", "### Added\n\n- Second.")
    assert section(CHANGELOG, "0.1.0") == ("unreleased", "- First.")
    assert section(CHANGELOG, "0.3.0") is None


def test_notes_have_the_section_and_the_drafted_fragments():
    assert release_notes("0.2.0", CHANGELOG) == (
        "# Sluice 0.2.0, 2027-03-01\n\n### Added\n\n- Second.\n"
    )
    drafted = release_notes("0.3.0", CHANGELOG, "### Fixed\n\n- Third.")
    assert drafted == "# Sluice 0.3.0, unreleased\n\n### Fixed\n\n- Third.\n"


def test_a_gathered_changelog_may_be_tagged():
    check_tag("v0.2.0", "0.2.0", CHANGELOG, [])


@pytest.mark.parametrize(
    ("tag", "version", "left", "message"),
    [
        ("v0.3.0", "0.2.0", [], "the tag is v0.3.0 and pyproject.toml has version 0.2.0"),
        ("v0.2.0", "0.2.0", ["a.fixed.md"], "1 fragments outside CHANGELOG.md (a.fixed.md)"),
        ("v0.1.0", "0.1.0", [], "no dated section for 0.1.0"),
        ("v0.3.0", "0.3.0", [], "no dated section for 0.3.0"),
    ],
)
def test_a_tag_that_does_not_fit_the_tree_is_refused(tag, version, left, message):
    with pytest.raises(NotReadyError, match=re.escape(message)):
        check_tag(tag, version, CHANGELOG, [Path(name) for name in left])


def test_the_rules_of_fragments_are_not_a_fragment(tmp_path: Path):
    (tmp_path / "README.md").touch()
    (tmp_path / "b.added.md").touch()
    (tmp_path / "a.fixed.md").touch()
    assert [path.name for path in fragments(tmp_path)] == ["a.fixed.md", "b.added.md"]


def test_the_changelog_of_this_tree_has_sections():
    text = notes.CHANGELOG.read_text(encoding="utf-8")
    found = section(text, "0.1.0")
    assert found is not None
    assert "### Spark jobs" in found[1]
