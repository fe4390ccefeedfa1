"""Input gates: how the consuming side gathers buffers from local and remote partitions."""
