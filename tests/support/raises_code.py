"""Expect an error that only its code tells from others of its class."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError


@contextmanager
def raises_code(
    code: ErrorCode, match: str | None = None, kind: type[SluiceError] = SluiceError
) -> Iterator[pytest.ExceptionInfo[SluiceError]]:
    """Expect an error of exactly one class: of no subclass, and not one that the peer reported."""
    __tracebackhide__ = True
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert (type(caught.value), caught.value.code) == (kind, code), repr(caught.value)
