"""The process of a TaskManager: its output, its signals and its end."""
