"""Copies of map outputs on other TaskManagers, and moves there."""
