"""Hooks for the site (`mkdocs.yml`): directories in the navigation, order of search results.

A directory in the navigation means all of its pages. Decisions rank below other pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DECISIONS_BOOST = 0.5
"""Searches should list pages about usage before pages about reasons."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each ``directory/`` of the navigation with its pages, ``index.md`` first.

    A new decision does not need a line in ``mkdocs.yml``. A missing directory stays unchanged, so
    that the build fails.
    """
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rank decisions below other pages in search, like ``search: boost`` in each one."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta.setdefault("search", {}).setdefault("boost", DECISIONS_BOOST)
    return markdown


def _expanded(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_expanded(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {title: _expanded(each, docs) for title, each in entry.items()}
    if isinstance(entry, str) and entry.endswith("/"):
        pages = sorted((docs / entry).glob("*.md"), key=lambda page: (page.stem != "index", page))
        return [page.relative_to(docs).as_posix() for page in pages] or entry
    return entry
