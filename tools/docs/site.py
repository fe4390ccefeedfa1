"""Hooks of the site (`mkdocs.yml`): directories in the navigation, and the order of search results.

A directory in the navigation stands for all of its pages. Decisions rank below other pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DECISIONS_BOOST = 0.5
"""A search should find the page that says how to use a thing before the one that says why."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each ``directory/`` of the navigation by its pages: ``index.md`` first, then by name.

    A new decision needs no line in ``mkdocs.yml``. A directory that is not there stays as it is,
    and the build fails because of it.
    """
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rank decisions below other pages in search, as ``search: boost`` in each of them would do."""
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
