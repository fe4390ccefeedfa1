"""Hybrid partitions: pipelined ones whose unread buffers move to the storage tiers."""
