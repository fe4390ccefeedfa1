"""The versions of the YARN cluster's jars."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

POM = Path(__file__).resolve().parent / "pom.xml"
HADOOP = "{*}properties/{*}hadoop.version"


def test_the_cluster_has_the_hadoop_of_pyspark():
    pyspark = pytest.importorskip("pyspark")
    version = ET.parse(POM).getroot().findtext(HADOOP)
    jars = Path(pyspark.__file__).parent / "jars"
    assert [jar.name for jar in jars.glob("hadoop-client-api-*.jar")] == [
        f"hadoop-client-api-{version}.jar"
    ]
