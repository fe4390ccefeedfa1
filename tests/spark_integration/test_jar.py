"""What is in the plugin's jar."""

from zipfile import ZipFile

import pytest

from sluice.spark_integration import SparkIntegrationError, jar_path


def test_only_classes_of_its_own():
    try:
        path = jar_path()
    except SparkIntegrationError as error:
        pytest.skip(str(error))
    with ZipFile(path) as jar:
        classes = [name for name in jar.namelist() if name.endswith(".class")]
    # Classes of Spark that are declared for the compiler would hide the real ones.
    assert [name for name in classes if not name.startswith("io/sluice/")] == []
    assert "io/sluice/spark/SluiceStreamingShuffleManager.class" in classes
