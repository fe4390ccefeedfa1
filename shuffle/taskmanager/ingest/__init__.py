"""Taking in what producers write: map outputs and pipelined partitions."""
