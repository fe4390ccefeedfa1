"""Which writes must survive a power cut, and the system calls that make them survive it.

========== ======================================= ===============================================
setting    a commit survives a power cut            a release survives a power cut
========== ======================================= ===============================================
never      when the kernel has written it back      the same
interval   after ``journal_sync_interval_seconds``  when it is acknowledged
commit     when it is acknowledged                  when it is acknowledged
========== ======================================= ===============================================

With ``commit`` the bytes of regions are synced before the row that names them is written, so a row
on the disk never names bytes that are not there. With the other modes a row may reach the disk
first, so the first start after a restart of the host verifies checksums. Unless the mode is
``never``, a release is synced in the file of releases before it is written to the journal, so a
power cut never damages both files.

The memory tier is never synced: tmpfs has no disk, and a power cut empties it.

A failed sync is never repeated on the same file: Linux drops the pages that it could not write, and
the next call succeeds without them. The rows fail and the directory is left out. A journal is
rewritten as a new file; an arena cannot be, so its directory stays out until the next start, which
verifies it.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ..tiers.tier import Tier

SyncMode = Literal["never", "interval", "commit"]


class JournalSync(NamedTuple):
    """The settings ``journal_sync`` and ``journal_sync_interval_seconds``.

    Attributes:
        mode: When rows are synced.
        interval_seconds: Longest time that a row is not synced, with mode ``interval``.
    """

    mode: SyncMode = "never"
    interval_seconds: float = 1.0

    @property
    def is_on(self) -> bool:
        """Whether anything is synced."""
        return self.mode != "never"

    def of(self, tier: "Tier | None") -> SyncMode:
        """Return when the rows of a tier's journal are synced."""
        return "never" if tier is None or tier.in_memory else self.mode
