"""The manual page cannot go stale."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sluice.cli import man_page
from sluice.cli.main import main

COMMITTED = Path(__file__).parents[2] / "sluice" / "sluice.1"


def test_the_committed_page_is_the_generated_one():
    assert COMMITTED.read_text(encoding="utf-8") == man_page.page(), "run: make docs"


def test_every_command_has_its_options():
    text = man_page.page()
    root = click.Context(main, info_name="sluice", **main.context_settings)
    for name in ("taskmanager", "status", "drain", "submit", "spark-conf", "completion"):
        command = main.get_command(root, name)
        assert command is not None
        _, _, after = text.partition(f".SS sluice {name} ")
        block = after.partition(".SS ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert rf"{parameter.opts[0]}".replace("-", r"\-") in block


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("a-b", r"a\-b"), (r"a\b", r"a\eb"), (".x", r"\&.x"), ("'x", r"\&'x")],
)
def test_roff_requests_in_a_text_are_escaped(text, escaped):
    assert man_page._escaped(text) == escaped
