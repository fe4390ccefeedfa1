"""The TaskManager daemon: configuration, store, copies, status, HTTP port and process."""
