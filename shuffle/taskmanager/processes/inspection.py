"""Map outputs of a shuffle in all data processes, as one page.

Imported when somebody asks for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ....transport.loop import run_together
from ..metrics.published_snapshot import DataLoopSilent
from ..process.control import Request
from ..store.shuffle_page import ShufflePage, ShuffleQuery, joined, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data_process import DataProcess


async def inspect(
    processes: Sequence[DataProcess], query: ShuffleQuery, answer_seconds: float
) -> ShufflePage:
    """Return a page of the map outputs in all processes that serve.

    A page without those of a process that serves would look complete, so there is none then.

    Args:
        processes: All of them.
        query: Which map outputs.
        answer_seconds: Time in which each process must answer.

    Raises:
        UnknownShuffle: No process knows the application, or several have the name.
        DataLoopSilent: A process has not answered, or none serves.
        SluiceError: A process has ended before it answered, or failed to.

    Cancellation: safe.
    """
    request = Request("shuffle", shuffle=(*query,))
    pages: list[ShufflePage] = []
    known: set[str] = set()

    async def ask(process: DataProcess) -> None:
        try:
            answer = await process.ask(request, answer_seconds)
        except TimeoutError:
            raise DataLoopSilent(answer_seconds, f"data process {process.index}") from None
        found = msgspec.json.decode(answer.page, type=ShufflePage | tuple[str, ...])
        if isinstance(found, ShufflePage):
            pages.append(found)
            known.add(found.application_id)
        else:
            known.update(found)

    serving = [each for each in processes if each.ready.is_set()]
    if not serving:
        raise DataLoopSilent(0.0)
    await run_together(ask(each) for each in serving)
    application = resolve(query.application, known)
    return joined([each for each in pages if each.application_id == application], query.limit)
