"""Data directories: which there are, and their health."""
