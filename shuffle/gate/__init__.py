"""Input gates: the consuming side reads buffers of local and remote partitions through them."""
