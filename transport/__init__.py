"""Moving frames: asyncio drivers, write watermarks, connections and listeners.

This layer feeds bytes to the sans-I/O core in :mod:`protocol` and sends what the core wants sent.
Memory to receive into comes from above, through the ``BufferSupplier`` interface.
"""
