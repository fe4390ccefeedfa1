"""Tasks that run in a TaskManager's own process: they write and read its memory directly.

Task and TaskManager share an event loop. With a thread for the TaskManager each buffer would cross
threads; a program without asyncio has ``SyncShuffleClient`` and a daemon instead. A task has no
pool of its own, because a second pool would only add a copy.
"""
