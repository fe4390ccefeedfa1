"""Result partitions: a task's output, by subpartition, stored or read while it is written."""
