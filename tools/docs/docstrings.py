"""Converts the Sphinx references in docstrings to Markdown for the site."""

from __future__ import annotations

import re
from typing import Any, Final

from griffe import Extension, Object

_ROLE: Final = re.compile(r":(?:attr|class|func|meth|mod):`~?\.?([\w.]+)`")
_LITERAL_BLOCK: Final = re.compile(r"^( *)(.*?)(?: ?)::$", re.MULTILINE)


class SphinxToMarkdown(Extension):
    """Converts roles to code, and the double colon of a literal block to a single one."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """Return a docstring without Sphinx markup."""
    text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", docstring)
    return _LITERAL_BLOCK.sub(lambda line: f"{line[1]}{line[2]}{':' if line[2] else ''}", text)
