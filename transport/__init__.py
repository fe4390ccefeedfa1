"""Moves frames: asyncio drivers, write watermarks, connections and listeners.

This layer feeds received bytes to the sans-I/O core in :mod:`sluice.protocol` and sends its
messages. The layer above supplies the memory to receive into, through
:class:`sluice.transport.connection.ConnectionHandler`.
"""
