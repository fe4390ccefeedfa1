"""Result partitions: how map outputs are written, found and read."""
