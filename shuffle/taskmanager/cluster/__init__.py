"""The other TaskManagers: connections to them, and which are known and reachable."""
