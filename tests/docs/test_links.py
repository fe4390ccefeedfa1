"""Pages outside of the site link to files and headings that are there; the site checks its own."""

from __future__ import annotations

import re

import pytest

from tests.docs.examples import ROOT

PAGES = [path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).exists()]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    links = [each for each in LINK.findall(text) if not each[0].startswith(("http:", "https:"))]
    assert links or page.name != "README.md"
    for file, anchor in links:
        target = page.parent / file if file else page
        assert target.exists(), file
        if anchor:
            assert anchor in headings(target.read_text(encoding="utf-8")), f"{file}#{anchor}"
