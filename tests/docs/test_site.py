"""The hooks of the site: navigation, search, and docstrings as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs import site
from tools.docs.docstrings import markdown

if TYPE_CHECKING:
    from pathlib import Path


def configured(nav: list[object], docs: Path) -> MkDocsConfig:
    config = MkDocsConfig()
    config["nav"], config["docs_dir"] = nav, str(docs)
    return config


def test_a_directory_stands_for_its_pages(tmp_path):
    (tmp_path / "decisions").mkdir()
    for name in ("002-b.md", "001-a.md", "index.md", "picture.svg"):
        (tmp_path / "decisions" / name).touch()
    config = configured(["index.md", {"Decisions": "decisions/"}], tmp_path)
    assert site.on_config(config).nav == [
        "index.md",
        {"Decisions": ["decisions/index.md", "decisions/001-a.md", "decisions/002-b.md"]},
    ]


def test_a_missing_directory_is_left_to_the_build(tmp_path):
    config = configured([{"Decisions": "decisions/"}], tmp_path)
    assert site.on_config(config).nav == [{"Decisions": "decisions/"}]


@pytest.mark.parametrize(
    ("name", "meta"),
    [
        ("decisions/001-a.md", {"search": {"boost": site.DECISIONS_BOOST}}),
        ("operate/tls.md", {}),
    ],
)
def test_decisions_rank_below_other_pages_in_search(name, meta, tmp_path):
    config = configured([], tmp_path)
    page = Page(None, File(name, str(tmp_path), str(tmp_path), True), config)
    page.meta = {}
    assert site.on_page_markdown("# A\n", page, config, Files([])) == "# A\n"
    assert page.meta == meta


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("Made by :meth:`ShuffleClient.connect`.", "Made by `connect`."),
        ("See :class:`~sluice.protocol.errors.SluiceError` of it.", "See `SluiceError` of it."),
        ("Use it::\n\n    x = 1\n", "Use it:\n\n    x = 1\n"),
        ("Use it.\n\n::\n\n    x = 1\n", "Use it.\n\n\n\n    x = 1\n"),
        ("A slice ``a[::2]`` stays.", "A slice ``a[::2]`` stays."),
    ],
)
def test_docstrings_become_markdown(docstring, shown):
    assert markdown(docstring) == shown
