"""Hybrid partitions: pipelined ones whose buffers move to the storage tiers."""
