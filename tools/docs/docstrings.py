"""Docstrings for the site: their references are written for Sphinx, the site reads Markdown."""

from __future__ import annotations

import re
from typing import Any, Final

from griffe import Extension, Object

_ROLE: Final = re.compile(r":(?:attr|class|func|meth|mod):`~?\.?([\w.]+)`")
_LITERAL_BLOCK: Final = re.compile(r"^( *)(.*?)(?: ?)::$", re.MULTILINE)


class SphinxToMarkdown(Extension):
    """Turns roles into code and the double colon of a literal block into a single one."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """Return a docstring without the marks that only Sphinx reads."""
    text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", docstring)
    return _LITERAL_BLOCK.sub(lambda line: f"{line[1]}{line[2]}{':' if line[2] else ''}", text)
