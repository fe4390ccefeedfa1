"""The TaskManager daemon: configuration, life cycle, HTTP, metrics and the command line."""
