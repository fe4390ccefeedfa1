"""The HTTP port: metrics, status and health, served by a thread of its own."""
