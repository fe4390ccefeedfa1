"""Receives the outputs that producers write: map outputs and pipelined partitions."""
