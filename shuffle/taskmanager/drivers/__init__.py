"""Spark drivers: their connections, and the applications that they own."""
