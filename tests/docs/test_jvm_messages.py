"""The JVM's messages are the generated ones."""

from __future__ import annotations

from tools.docs.jvm_messages import files


def test_the_committed_classes_are_the_generated_ones():
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run: make docs"
