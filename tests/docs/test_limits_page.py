"""The page of limits has every limit of the settings, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from sluice.shuffle.taskmanager.config import keys
from sluice.shuffle.taskmanager.config_reference import page

LIMITS = Path(__file__).parents[2] / "docs" / "operate" / "limits.md"
IS_LIMIT = re.compile(r"(max_|quota_).*|.*_timeout_seconds")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*?) \|", re.MULTILINE)


def limits() -> set[str]:
    return {key for key in rows(page()) if IS_LIMIT.fullmatch(key)}


def rows(text: str) -> dict[str, str]:
    """Return the second cell of each row that begins with a key."""
    return {key: cell.strip("`") for key, cell in ROW.findall(text)}


def test_the_page_of_settings_has_limits_of_every_kind():
    """The control: otherwise the tests below would say nothing."""
    assert len(rows(page())) == len(keys())
    assert limits() >= {"max_connections", "quota_channels", "frame_timeout_seconds"}


def test_every_limit_is_on_the_page():
    text = LIMITS.read_text(encoding="utf-8")
    assert not {key for key in limits() if f"`{key}`" not in text}


def test_the_page_has_the_defaults_of_the_settings():
    settings = rows(page())
    shown = rows(LIMITS.read_text(encoding="utf-8"))
    assert shown.keys() <= settings.keys()
    assert shown == {key: settings[key] for key in shown}
