"""``BASELINE_CONF``: settings that make another baseline of Spark's own shuffle."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

VARIABLE = "BASELINE_CONF"
SHUFFLE_SERVICE = "spark.shuffle.service.enabled"
SHUFFLE_SERVICE_PORT = "spark.shuffle.service.port"

_SEPARATOR = re.compile(r"[ \t]*[=:][ \t]*|[ \t]+")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The other side of a benchmark: Spark as it is, or with the settings of a file."""

    file: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_environment(cls) -> Self:
        """Return the baseline that the environment variable names; without it, Spark as it is.

        Raises:
            RuntimeError: It does not name a file, or a line of the file is not a setting.
        """
        name = os.environ.get(VARIABLE)
        if not name:
            return cls()
        file = Path(name).resolve()
        if not file.is_file():
            raise RuntimeError(f"{VARIABLE}={name} is not a file")
        return cls(file, read_spark_defaults(file))

    @property
    def needs_shuffle_service(self) -> bool:
        """Whether executors expect Spark's external shuffle service on their host."""
        return self.settings.get(SHUFFLE_SERVICE, "false").lower() == "true"

    @property
    def is_sluice(self) -> bool:
        """Whether it is Sluice with other settings, which needs the jar and the endpoints."""
        return any(key.startswith("spark.sluice.") for key in self.settings)

    def over(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return settings, replaced by the file's; ``spark.jars`` names another build."""
        return {key: self.settings.get(key, value) for key, value in settings.items()}


def read_spark_defaults(file: Path) -> dict[str, str]:
    """Return the settings of a spark-defaults file: a key and a value per line, ``#`` for comments.

    Raises:
        RuntimeError: A line is not a setting.
    """
    settings = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, *value = _SEPARATOR.split(text, maxsplit=1)
        if not key.startswith("spark.") or not value:
            raise RuntimeError(
                f"{file}, line {number}: '{text}' is not a setting: write spark.KEY VALUE"
            )
        settings[key] = value[0]
    return settings
