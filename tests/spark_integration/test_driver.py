"""The driver's JVM, with a stand-in for it; tests/spark/test_front_door.py has a real one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.spark_integration import SparkIntegrationError, driver

NAME = "io.sluice.spark.SluicePlugin"


class Loader:
    """A Java class loader."""

    def __init__(self, kind: str, *resources: str) -> None:
        self._kind = kind
        self._resources = resources
        self.added: list[str] = []

    def getResource(self, name: str) -> str | None:  # noqa: N802 - Java's name
        return name if name in self._resources else None

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def addURL(self, url: str) -> None:  # noqa: N802 - Java's name
        self.added.append(url)


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a JVM with this class loader the driver's."""

    def make(loader: Loader) -> Loader:
        thread = SimpleNamespace(getContextClassLoader=lambda: loader)
        java = SimpleNamespace(
            lang=SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread)),
            io=SimpleNamespace(File=lambda path: Url(path)),
        )
        monkeypatch.setattr(driver, "_jvm", lambda: SimpleNamespace(java=java))
        return loader

    return make


class Url(str):
    """A file, its URI and its URL."""

    __slots__ = ()

    def toURI(self) -> Url:  # noqa: N802 - Java's name
        return self

    def toURL(self) -> Url:  # noqa: N802 - Java's name
        return self


@pytest.mark.parametrize("kind", ["MutableURLClassLoader", "ChildFirstURLClassLoader"])
def test_a_jar_is_added_to_a_running_driver(jvm: Any, kind: str) -> None:
    loader = jvm(Loader(kind))
    driver.add_jar("/opt/s.jar", NAME)
    assert loader.added == ["/opt/s.jar"]


def test_a_loaded_class_is_not_added_again(jvm: Any) -> None:
    loader = jvm(Loader("AppClassLoader", "io/sluice/spark/SluicePlugin.class"))
    driver.add_jar("/opt/s.jar", NAME)
    assert loader.added == []


def test_a_driver_that_refuses_the_jar_is_reported_with_the_remedy(jvm: Any) -> None:
    loader = jvm(Loader("AppClassLoader"))
    with pytest.raises(SparkIntegrationError, match=r"cannot load another jar .*spark-submit \$\("):
        driver.add_jar("/opt/s.jar", NAME)
    assert loader.added == []


def test_builder_settings_of_another_kind_of_builder_are_unknown() -> None:
    assert driver.builder_settings(object()) == {}
    assert driver.builder_settings(SimpleNamespace(_options={"a": True})) == {"a": "True"}


def test_a_process_without_pyspark_has_no_running_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert driver.running_settings() is None
    assert not driver.is_jvm_running()
