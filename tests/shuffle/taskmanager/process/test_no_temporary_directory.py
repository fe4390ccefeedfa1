"""Nothing can be written to any temporary directory, as in a container whose root is read-only."""

from __future__ import annotations

import tempfile

import pytest
from click.testing import CliRunner

from sluice.cli.main import main
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from sluice.spark_integration.errors import SparkIntegrationError
from sluice.spark_integration.local_taskmanager import LocalTaskManager


@pytest.fixture(autouse=True)
def _no_temporary_directory(monkeypatch, tmp_path):  # pytest makes the second one first
    def refuse(*_: object, **__: object):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", refuse)


def test_the_configuration_can_be_read():
    assert StorageConfig().data_directories


def test_a_daemon_with_a_data_directory_needs_none(tmp_path, monkeypatch):
    seen = []

    def run(config, load_again, control, manager):
        seen.append(config)
        return 0

    monkeypatch.setattr("sluice.shuffle.taskmanager.process.service.run", run)
    result = CliRunner().invoke(
        main,
        ["taskmanager", f"--data-directories={tmp_path}", "--processes=1"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert seen[0].storage.data_directories == (tmp_path,)


async def test_an_embedded_taskmanager_says_what_it_needs():
    with pytest.raises(StorageUnavailable, match="Set TMPDIR to a directory"):
        async with TaskManager.embedded():
            pass


def test_a_local_taskmanager_says_what_it_needs():
    with pytest.raises(SparkIntegrationError, match="Set TMPDIR to a directory"):
        LocalTaskManager()
