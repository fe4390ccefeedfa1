"""The survivors that are known, each with the reason why no test can or need tell it apart."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tools.mutate.operators import Mutation

KNOWN: Final = Path(__file__).with_name("survivors.toml")


class Survivor(NamedTuple):
    """A mutation that no test notices, and the reason.

    Args:
        module: Path of the module.
        function: Qualified name of the function.
        original: The code as it is.
        mutated: The code instead.
        reason: Why no test tells them apart.
        number: Tells equal changes of one function apart.
    """

    module: str
    function: str
    original: str
    mutated: str
    reason: str
    number: int = 1

    def is_of(self, mutation: Mutation) -> bool:
        """Whether it is this mutation."""
        return (self.module, self.function, self.original, self.mutated, self.number) == (
            mutation.module,
            mutation.function,
            mutation.original,
            mutation.mutated,
            mutation.number,
        )


def known_survivors(path: Path = KNOWN) -> list[Survivor]:
    """Read the survivors that have a reason."""
    with path.open("rb") as file:
        entries = tomllib.load(file).get("survivor", [])
    return [Survivor(**entry) for entry in entries]


def unexplained(survivors: Iterable[Mutation], known: list[Survivor]) -> list[Mutation]:
    """Return the survivors without a reason."""
    return [each for each in survivors if not any(one.is_of(each) for one in known)]


def entry_of(mutation: Mutation) -> str:
    """Return the entry of a survivor in the file, its reason left to be written."""
    number = f"number = {mutation.number}\n" if mutation.number > 1 else ""
    return (
        "[[survivor]]\n"
        f'module = "{mutation.module}"\n'
        f'function = "{mutation.function}"\n'
        f"original = {_literal(mutation.original)}\n"
        f"mutated = {_literal(mutation.mutated)}\n"
        f"{number}"
        'reason = ""\n'
    )


def _literal(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
