"""The sending ends of legs that a task and a TaskManager both have: those that write partitions."""
