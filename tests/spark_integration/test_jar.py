"""The plugin's jar holds the plugin and nothing of Spark."""

from zipfile import ZipFile

import pytest

from sluice.spark_integration import SparkIntegrationError, jar_path


def test_the_jar_has_only_classes_of_the_plugin():
    try:
        path = jar_path()
    except SparkIntegrationError as error:
        pytest.skip(str(error))
    with ZipFile(path) as jar:
        classes = [name for name in jar.namelist() if name.endswith(".class")]
    # Classes of Spark that are declared for the compiler would hide the real ones.
    assert [name for name in classes if not name.startswith("io/sluice/")] == []
    assert "io/sluice/spark/SluiceStreamingShuffleManager.class" in classes
