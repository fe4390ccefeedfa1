"""Section `[traces]`: OpenTelemetry traces."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from ....transport.settings import NONE_ALLOWED, Settings


class TracesConfig(Settings):
    """Traces of tasks that ask for them, and of the moves of a drain."""

    traces_endpoint: Annotated[str | None, NONE_ALLOWED] = None
    """URL of an OTLP/HTTP collector, such as `http://HOST:4318/v1/traces`. None: no traces. Needs
    the packages of `sluice-shuffle[traces]`."""

    traces_sample_ratio: float = Field(1, ge=0, le=1, allow_inf_nan=False)
    """Share of the traces begun by this TaskManager that are recorded. A trace that a client has
    begun is recorded if the client says so."""

    @field_validator("traces_endpoint")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            usable = usable and parts.port != 0 and "@" not in parts.netloc
        except ValueError:
            usable = False
        if not usable or not url.isprintable() or " " in url:
            raise ValueError(
                f'"{url}" is not the URL of a collector: write it as http://HOST:4318/v1/traces'
            )
        return url
