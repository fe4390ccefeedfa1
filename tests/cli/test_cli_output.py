"""What the commands print: in 80 columns, in any encoding, with and without colors."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from sluice.cli.main import main
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.shuffle.taskmanager.status.status import data_path
from tests.support.http_servers import in_terminal, page_serving
from tools.docs.sample_status import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "Zażółć → 集計"


def commands(
    command: click.Command = main, path: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command, parent=parent)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from commands(found, (*path, name), ctx)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for key in keys().values():
        monkeypatch.delenv(key.variable, raising=False)


def run(*arguments: str, charset: str = "utf-8"):
    runner = CliRunner(charset=charset, env={"COLUMNS": "80"})
    return runner.invoke(main, list(arguments), catch_exceptions=False)


def named_application():
    document = json.loads(STATUS.encode())
    document["applications"][0]["application_id"] = NAME
    return page_serving(json.dumps(document))


WITHOUT_DOCUMENT = {
    ("completion",): "prints a script",
    ("spark-conf",): "prints words for a shell",
    ("submit",): "is spark-submit",
    ("taskmanager",): "serves; log_format = json makes its log JSON",
}


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_each_command_with_a_result_prints_json(path):
    is_group = "COMMAND [ARGS]..." in run(*path, "--help").stdout
    has_json = "--json" in run(*path, "--help").stdout
    assert has_json == (not is_group and path not in WITHOUT_DOCUMENT)


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_the_help_of_each_command_fits_into_80_columns(path):
    result = run(*path, "-h")
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert result.stdout == run(*path, "--help").stdout


def test_the_full_help_of_options_fits_into_80_columns():
    shown = run("taskmanager", "--help-all").stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_version_is_a_command_and_names_the_data_path():
    number = importlib.metadata.version("sluice-shuffle")
    python = platform.python_version()
    assert run("version").stdout == f"sluice {number}, data path {data_path()}, Python {python}\n"
    assert number in run("--version").stdout
    assert json.loads(run("version", "--json").stdout) == {
        "schema": "sluice.version/1",
        "version": number,
        "data_path": data_path(),
        "python": python,
    }


def test_a_character_that_the_encoding_lacks_is_written_as_its_escape():
    with named_application() as port:
        result = run("status", f"127.0.0.1:{port}", charset="latin-1")
        assert NAME in run("status", f"127.0.0.1:{port}").stdout
    assert result.exit_code == 0
    assert NAME.encode("latin-1", "backslashreplace").decode("latin-1") in result.stdout


def test_a_terminal_gets_colors_unless_no_color_is_set(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    with named_application() as port:
        assert "\x1b[" in in_terminal(80, "status", f"127.0.0.1:{port}")
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in in_terminal(80, "status", f"127.0.0.1:{port}")


def test_options_for_spark_have_the_bytes_of_the_arguments():
    given = os.fsdecode(b"spark.x=/data/\xff")
    result = run("spark-conf", "--endpoints", "tm:7337", "--conf", given)
    assert result.exit_code == 0
    assert b"spark.x=/data/\xff" in result.stdout_bytes


def test_options_that_the_encoding_lacks_are_refused_and_not_changed():
    result = run("spark-conf", "--endpoints", "tm:7337", "--conf", "spark.x=→", charset="latin-1")
    assert result.exit_code == 1
    assert "cannot be printed in latin-1" in result.stderr
    assert "PYTHONIOENCODING=utf-8" in result.stderr
