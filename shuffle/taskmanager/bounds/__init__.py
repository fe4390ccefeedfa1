"""Bounds: accounts of applications, quotas, deadlines of progress."""
