"""The store of map outputs: arenas of recycled extents, a journal, an index."""
