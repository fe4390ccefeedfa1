"""Tiers of storage on this host, and allocation in their arenas."""
