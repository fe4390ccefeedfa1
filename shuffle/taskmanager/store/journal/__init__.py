"""Journals of map outputs, their replay and recovery."""
