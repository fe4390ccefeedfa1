"""The shuffle: network memory, result partitions, input gates, records, the client, the daemon."""
