"""Hooks of the site (`mkdocs.yml`): a directory in the navigation stands for all of its pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each ``directory/`` of the navigation by its pages: ``index.md`` first, then by name.

    A new decision needs no line in ``mkdocs.yml``. A directory that is not there stays as it is,
    and the build fails because of it.
    """
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_expanded(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {title: _expanded(each, docs) for title, each in entry.items()}
    if isinstance(entry, str) and entry.endswith("/"):
        pages = sorted((docs / entry).glob("*.md"), key=lambda page: (page.stem != "index", page))
        return [page.relative_to(docs).as_posix() for page in pages] or entry
    return entry
