"""The status of a TaskManager: a snapshot of its numbers, and tables of them."""
