"""How Spark's directories and Java are found, and the messages when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.spark_integration import SparkIntegrationError
from sluice.spark_integration.spark_home import conf_directory, require_java


def java(directory: Path, version: str) -> Path:
    """Write a Java that only tells its version, and return its home."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    path.chmod(0o755)
    return directory


def test_the_configuration_directory_is_found(tmp_path: Path) -> None:
    assert conf_directory({"SPARK_CONF_DIR": "/c", "SPARK_HOME": "/h"}, tmp_path) == Path("/c")
    assert conf_directory({"SPARK_HOME": "/h"}) == Path("/h/conf")
    assert conf_directory({"SPARK_HOME": "/h"}, tmp_path) == tmp_path / "conf"
    assert conf_directory({"SPARK_CONF_DIR": ""}, tmp_path) == tmp_path / "conf"


@pytest.mark.parametrize("version", ["17.0.9", "21", "25-ea"])
def test_a_new_java_is_accepted(tmp_path: Path, version: str) -> None:
    home = java(tmp_path, version)
    require_java({"JAVA_HOME": str(home)}, None)
    require_java({"PATH": str(home / "bin") + ":/usr/bin:/bin"}, tmp_path)


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_an_old_java_is_refused(tmp_path: Path, version: str, number: int) -> None:
    with pytest.raises(SparkIntegrationError, match=f"is Java {number}, limit Java 17 or later"):
        require_java({"JAVA_HOME": str(java(tmp_path, version))}, None)


def test_a_missing_java_is_reported() -> None:
    with pytest.raises(SparkIntegrationError, match=r"^Java is not found\. Install Java 17 or"):
        require_java({"PATH": "/no/such/directory"}, None)


def test_a_java_home_without_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SparkIntegrationError, match=r"it has no bin/java .* unset it"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"}, None)


def test_spark_env_may_set_another_java(tmp_path: Path) -> None:
    (tmp_path / "spark-env.sh").touch()
    require_java({"PATH": "/no/such/directory"}, tmp_path)


def test_a_java_of_unknown_version_is_left_to_spark(tmp_path: Path) -> None:
    home = java(tmp_path, "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    require_java({"JAVA_HOME": str(home)}, None)
