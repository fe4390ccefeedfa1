"""Tasks that run in a TaskManager's own process: they write and read its memory directly."""
