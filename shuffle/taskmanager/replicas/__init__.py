"""Replicas of map outputs on other TaskManagers, and migration to them."""
