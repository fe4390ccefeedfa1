"""Deterministic simulation: complete TaskManagers, clients and faults on one virtual clock."""
