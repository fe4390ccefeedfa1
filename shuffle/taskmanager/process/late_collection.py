"""Defers garbage collection until ``sluice taskmanager`` has been imported.

Imports make hundreds of thousands of objects, and all of them stay. The collector would go through
them again and again, which takes a tenth of the start.

``cli`` imports this module first. In any other program the import does nothing.
"""

import gc

from .early_signals import is_daemon

if is_daemon():
    gc.disable()


def begin() -> None:
    """Start collecting, and ignore the objects that exist now."""
    gc.freeze()
    gc.enable()
