"""The help of ``sluice taskmanager``."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from sluice.cli.key_options import description, first_sentence
from sluice.cli.main import main
from sluice.shuffle.taskmanager.config.taskmanager_config import keys, sections


def help_text(option: str) -> str:
    result = CliRunner().invoke(main, ["taskmanager", option])
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_the_options_of_a_section_stand_below_its_heading(option):
    blocks = re.split(r"\n(?=\S)", help_text(option))
    for section, _ in sections():
        (block,) = [b for b in blocks if b.startswith(f"[{section}] " if section else "Process:")]
        flags = re.findall(r"^  (--[a-z-]+)", block, re.MULTILINE)
        assert flags == [key.flag for key in keys().values() if key.section == section]
    (general,) = [block for block in blocks if block.startswith("Options:")]
    assert re.findall(r"^  (?:-h, )?(--[a-z-]+)", general, re.MULTILINE) == [
        "--config",
        "--help-all",
        "--help",
    ]


def test_help_has_the_first_sentence_and_help_all_the_whole_text():
    short, long = (" ".join(help_text(option).split()) for option in ("--help", "--help-all"))
    assert "Unix socket for clients on the same host --" in short
    assert "The socket file of a dead daemon is replaced" not in short
    assert "The socket file of a dead daemon is replaced." in long
    for key in keys().values():
        assert description(key), key.name
        assert description(key).replace("`", "") in long


def test_completion_shows_the_help_of_options():
    command = main.get_command(click.Context(main), "taskmanager")
    assert command is not None
    found = command.shell_complete(click.Context(command), "--socket-p")
    assert [(item.value, item.help) for item in found] == [
        ("--socket-path", description(keys()["socket_path"]))
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One"),
        ("One; two.", "One"),
        ("At 0.5 s. More.", "At 0.5 s"),
        ("No stop", "No stop"),
    ],
)
def test_the_first_sentence(text, sentence):
    assert first_sentence(text) == sentence
