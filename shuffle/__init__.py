"""The shuffle itself: network memory, result partitions, storage, input gates, the daemon."""
