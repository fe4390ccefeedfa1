"""Finds stored data that is damaged, and drops it so that no reader gets it again."""
