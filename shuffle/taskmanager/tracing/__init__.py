"""Traces of partitions, gates and moves; loaded only where ``traces_endpoint`` is set."""
