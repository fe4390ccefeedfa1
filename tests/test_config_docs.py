"""The configuration reference cannot go stale."""

from __future__ import annotations

import tomllib
from pathlib import Path

from sluice.cli.config_reference import page
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig, keys

DOCS = Path(__file__).parents[1] / "docs"
COMMITTED = DOCS / "reference" / "settings.md"
GUIDE = DOCS / "operate" / "configuration.md"


def test_the_committed_page_is_the_generated_one():
    assert COMMITTED.read_text(encoding="utf-8") == page(), "run: make docs"


def test_every_key_has_a_row_with_a_meaning():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(keys())
    assert all(row.removesuffix(" |").rpartition(" | ")[2] for row in rows)


def test_the_example_is_a_valid_configuration():
    example = GUIDE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    config = TaskManagerConfig.model_validate(tomllib.loads(example))
    assert config.memory.network_segments == 4096


def test_types_and_defaults_read_naturally():
    rows = page()
    for row in (
        "| `connect_retries` | *none* | integer ≥ 0 |",
        "| `restore_bytes_per_second` | `128 MiB` | size ≥ 1 B |",
        "| `quota_channels` | `65536` | integer ≥ 1 |",
        "| `cluster_secret_files` | *none* | list of paths |",
        "| `advertised_host` | *none* | text |",
    ):
        assert row in rows
