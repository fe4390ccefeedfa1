"""Storage of blocking partitions: arena of recycled extents, journal, index of map outputs."""
