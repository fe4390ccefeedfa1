"""The Python blocks of README and docs, as modules that can be type-checked and run.

A block is a module of its own. An HTML comment in front of it, which no reader sees, may give the
rest of the module, with ``<block>`` where the block goes, indented as far as the block is to be::

    <!-- example
    words = ["to", "be"]

    async def main() -> None:
        <block>
        assert sorted(mine) == ["be", "to"]
    -->

``<!-- example: spark`` says that the module starts a Spark session, ``<!-- example: submit`` that
it is a job for ``sluice submit``. The Unix socket of the pages, and the two hosts of a session,
are replaced by a TaskManager that runs. A block in a tab is indented, and its comment is in front
of the tab: a comment inside a tab would be shown.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
SOCKET: Final = "unix:/run/sluice/taskmanager.sock"
HOSTS: Final = '["host1:7337", "host2:7337"]'
BLOCK: Final = re.compile(
    r"(?:^<!-- example(?:: (?P<kind>spark|submit))?\n(?P<frame>(?:(?!-->).)*?)^-->\n"
    r"(?:\n=== (?:(?!<!-- example|```python).)*)?)?"  # the rest of a tab before its block
    r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
PLACE: Final = re.compile(r"^( *)<block>$", re.MULTILINE)


class Example(NamedTuple):
    """One block with what is around it."""

    page: str
    line: int
    module: str
    kind: str
    """``spark``, ``submit``, or nothing."""

    @property
    def name(self) -> str:
        """A name that a module can have."""
        stem = re.sub(r"\W+", "_", self.page.removesuffix(".md")).lower()
        return f"{stem}_line_{self.line}"

    def module_for(self, endpoint: str) -> str:
        """Return the module with the endpoint of a TaskManager that runs."""
        module = self.module.replace(SOCKET, endpoint)
        return module.replace(HOSTS, f'["{endpoint}"]') if self.kind == "spark" else module


def pages() -> list[Path]:
    """Return every page for users: README and all below docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples() -> list[Example]:
    """Return every Python block, in the order of the pages."""
    return [example for page in pages() for example in examples_of(page)]


def examples_of(page: Path) -> list[Example]:
    """Return the Python blocks of one page.

    Raises:
        ValueError: The rest of a module has no place, or several, for its block.
    """
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = []
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("code")) + 1
        margin = re.compile(f"^{block['indent']}", re.MULTILINE)
        module = margin.sub("", block["code"])
        if block["frame"] is not None:
            places = PLACE.findall(block["frame"])
            if len(places) != 1:
                raise ValueError(f"{name}:{line}: the example has {len(places)} <block> lines")
            inside = textwrap.indent(module.rstrip("\n"), places[0])
            module = block["frame"].replace(f"{places[0]}<block>", inside)
        found.append(Example(name, line, module, block["kind"] or ""))
    return found
