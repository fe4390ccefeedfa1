"""The options of ``sluice taskmanager``: one for each configuration key, listed by section."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from ..shuffle.taskmanager.config.taskmanager_config import Key, keys, sections
from ..transport.settings import descriptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

_HELP_ALL: Final = "sluice.help_all"
_SENTENCE = re.compile(r"(.+?[.:;])(\s|$)")


class KeyOption(click.Option):
    """The option of a key. Its help text is read when it is needed.

    Args:
        key: The key.
    """

    def __init__(self, *args: Any, key: Key, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._key = key

    def describe(self) -> None:
        """Set the help."""
        self.help = description(self._key).replace("`", "")

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names of the option and its help."""
        self.describe()
        return super().get_help_record(ctx)


class SectionedCommand(click.Command):
    """A command with the options of :func:`key_options`.

    ``--help`` lists them by section, each with the first sentence of its help; ``--help-all`` lists
    them with all of it.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` in front of ``--help``."""
        *own, help_option = super().get_params(ctx)
        return [*own, _HELP_ALL_OPTION, help_option]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions, with the help texts of options."""
        for parameter in self.params:
            if isinstance(parameter, KeyOption):
                parameter.describe()
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of each section below a heading."""
        shown = ctx.meta.get(_HELP_ALL, False)
        records: dict[str, list[tuple[str, str]]] = {"Options": []}
        for name, settings in sections():
            records[_heading(name, settings.__doc__)] = []
        headings = {
            key.name: _heading(name, settings.__doc__)
            for name, settings in sections()
            for key in keys().values()
            if key.section == name
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                flag, text = record
                heading = headings.get(parameter.name or "", "Options")
                records[heading].append((flag, text if shown else first_sentence(text)))
        for heading, rows in records.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option for every configuration key."""
    for key in reversed(keys().values()):
        option = click.option(key.flag, key.name, cls=KeyOption, metavar=_metavar(key), key=key)
        command = option(command)
    return command


def description(key: Key) -> str:
    """Return the docstring below the field of a key, on one line."""
    return " ".join(descriptions(dict(sections())[key.section]).get(key.name, "").split())


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop, colon or semicolon, and without that."""
    match = _SENTENCE.match(text)
    return text if match is None else match[1][:-1]


def _heading(section: str, summary: str | None) -> str:
    if not section:
        return "Process"
    return f"[{section}] {(summary or '').splitlines()[0].rstrip('.')}"


def _metavar(key: Key) -> str:
    for ending, metavar in (("_bytes", "SIZE"), ("_seconds", "SECONDS"), ("_port", "PORT")):
        if key.name.endswith(ending):
            return metavar
    return "VALUE"


def _show_all(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL_OPTION: Final = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show the whole help of each option.",
)
